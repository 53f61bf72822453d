"""Prometheus metrics at `/metrics`. Labels never contain ids, so that they have few values."""

import time
from typing import Any, Final

import anyio
from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from assay.contracts.chat import CellEnded, CellStarted, ChatEvent, ToolUsed, TurnEnded
from assay.contracts.events import ModelReplied, RunEnded, RunEvent, Verified
from assay.contracts.messages import Usage
from assay.server.api.dependencies import ReadAccess, Server
from assay.server.api.middleware import RequestCompleted
from assay.server.api.problems import documented
from assay.server.app_state import ServerState

router = APIRouter(tags=["operations"])

_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_LAG_EVERY_S: Final = 0.25


class Metrics:
    """Metrics of the service, in their own registry. Implements `Watcher`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter(
            "assay_http_requests", "Requests by route and status.", "method", "route", "status"
        )
        self._seconds = self._histogram(
            "assay_http_request_seconds", "From a request to the end of its answer.", "route"
        )
        self._turns = self._counter("assay_turns", "Turns by how they ended.", "status")
        self._cells = self._counter("assay_cells", "Cells by how they ended.", "outcome")
        self._cell_seconds = self._histogram("assay_cell_seconds", "How long cells ran.")
        self._runs = self._counter("assay_runs", "Runs by how they ended.", "status")
        self._run_seconds = self._histogram("assay_run_seconds", "How long runs took.")
        self._verdicts = self._counter(
            "assay_verdicts", "What the independent check said.", "verdict"
        )
        self._tokens = self._counter("assay_model_tokens", "Tokens of models.", "direction")
        self._cost = self._counter("assay_model_cost_usd", "What models cost, where it is known.")
        self._open = self._gauge("assay_conversations_open", "Conversations that are open.")
        self._busy = self._gauge("assay_turns_running", "Turns that are under way.")
        self._unfinished = self._gauge("assay_runs_unfinished", "Runs at work or waiting.")
        self._draining = self._gauge("assay_draining", "Whether the service is ending.")
        self._lag = self._gauge(
            "assay_event_loop_lag_seconds", "How late the event loop was, at worst, lately."
        )

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(name, about, registry=self.registry)

    def _histogram(self, name: str, about: str, *labels: str) -> Histogram:
        return Histogram(name, about, labels, buckets=_BUCKETS_S, registry=self.registry)

    def answered(self, answered: RequestCompleted) -> None:
        """Count a request."""
        route = answered.route or "none"
        self._requests.labels(answered.method, route, str(answered.status)).inc()
        self._seconds.labels(route).observe(answered.duration_s)

    def dialogue_event(self, session: str, event: ChatEvent) -> None:
        """Count an event of a session."""
        del session
        match event:
            case CellStarted() | ToolUsed():
                self._use(event.usage)
            case CellEnded():
                self._cells.labels("failed" if event.failed else "succeeded").inc()
                self._cell_seconds.observe(event.duration_s)
            case TurnEnded():
                self._use(event.usage)
                self._turns.labels(event.status).inc()
            case _:
                pass

    def run_event(self, run: str, event: RunEvent) -> None:
        """Count an event of a run."""
        del run
        match event:
            case ModelReplied():
                self._use(event.usage)
            case Verified():
                self._verdicts.labels("accepted" if event.verdict.accepted else "rejected").inc()
            case RunEnded():
                self._runs.labels(event.outcome.status.value).inc()
                self._run_seconds.observe(event.outcome.wall_s)
            case _:
                pass

    def look_at(self, hosting: ServerState) -> None:
        """Set the gauges of open sessions, turns and runs from the service."""
        self._open.set(hosting.conversations.open_count)
        self._busy.set(hosting.conversations.busy_count)
        self._unfinished.set(hosting.runs.unfinished_count)
        self._draining.set(hosting.draining)

    async def watch_loop(self) -> None:
        """Measure the lag of the event loop; the gauge falls slowly, so that peaks stay visible."""
        worst = 0.0
        while True:
            due = time.perf_counter() + _LAG_EVERY_S
            await anyio.sleep(_LAG_EVERY_S)
            worst = max(worst * 0.95, time.perf_counter() - due)
            self._lag.set(worst)

    def _use(self, usage: Usage) -> None:
        self._tokens.labels("input").inc(usage.input_tokens)
        self._tokens.labels("output").inc(usage.output_tokens)
        self._cost.inc(usage.cost_usd or 0.0)


_TEXT: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Numbers"}
}


@router.get("/metrics", response_class=Response, responses={**documented(), **_TEXT})
async def read_metrics(request: Request, house: Server, caller: ReadAccess) -> Response:
    """Return all metrics in the Prometheus format."""
    del caller
    metrics: Metrics = request.app.state.metrics
    metrics.look_at(house)
    return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)
