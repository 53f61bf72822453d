"""Monitoring: `/healthz`, `/readyz`, Prometheus metrics at `/metrics`, and OpenTelemetry traces.

Labels of metrics never contain ids, so that they have few values. Spans are built from the events
that all observers receive, if an endpoint is configured. They hold names and numbers; they hold
messages, code and output only with `serve.trace_content`.
"""

import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import anyio
from fastapi import APIRouter, Request, Response
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from assay.contracts.chat import (
    CellEnded,
    CellStarted,
    ChatEvent,
    ModelChosen,
    ToolUsed,
    TurnEnded,
    TurnStarted,
)
from assay.contracts.errors import AssayError
from assay.contracts.events import (
    AttemptStarted,
    ModelReplied,
    RunEnded,
    RunEvent,
    RunResumed,
    RunStarted,
    Verified,
)
from assay.contracts.messages import Usage
from assay.server.api.dependencies import ReadAccess, Server
from assay.server.api.middleware import RequestCompleted
from assay.server.api.problems import documented
from assay.server.app_state import COMPONENTS, ServerState
from assay.telemetry import events as names
from assay.telemetry.tracing import open_tracer, parent_context

health_router = APIRouter(tags=["operations"])

_NEEDED: Final = frozenset({"database", "executor"})
"""Components without which the service cannot answer requests."""


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """Readiness of the service, by component."""

    status: Literal["ready", "degraded"]
    checks: dict[str, Literal["ok", "failed"]] = Field(
        examples=[{"database": "ok", "executor": "ok", "model": "ok"}]
    )
    details: dict[str, str] | None = Field(
        default=None, description="What is wrong; only for admins"
    )


_UNREADY: Final[dict[int | str, dict[str, Any]]] = {
    503: {"model": Readiness, "description": "It is ending, or a part that it needs fails"}
}


@health_router.get("/healthz")
async def is_alive() -> Alive:
    """Report that the process answers."""
    return Alive()


@health_router.get("/readyz", responses=_UNREADY, response_model_exclude_none=True)
async def is_ready(request: Request, response: Response, server: Server) -> Readiness:
    """Check the database, the executor and the model.

    The status is 503 during shutdown, and if the database or the executor fails.
    """
    troubles = await server.health.troubles()
    failed = {part: trouble for part, trouble in troubles.items() if trouble}
    if server.draining or _NEEDED & failed.keys():
        response.status_code = 503
    details = dict[str, str](failed)
    if server.draining:
        details["shutdown"] = "the service is ending"
    show = bool(details) and await _is_admin(request, server)
    return Readiness(
        status="degraded" if details else "ready",
        checks={part: "failed" if part in failed else "ok" for part in COMPONENTS},
        details=details if show else None,
    )


async def _is_admin(request: Request, server: ServerState) -> bool:
    try:
        caller = await server.access.identify(request.headers.get("authorization", ""))
    except AssayError:
        return False
    return caller.role == "admin"


metrics_router = APIRouter(tags=["operations"])

_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_LAG_EVERY_S: Final = 0.25


class Metrics:
    """Metrics of the service, in their own registry. Implements `Observer`."""

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
            "assay_verdicts", "Verdicts of the independent check.", "verdict"
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

    def note_request(self, request: RequestCompleted) -> None:
        """Count a request."""
        route = request.route or "none"
        self._requests.labels(request.method, route, str(request.status)).inc()
        self._seconds.labels(route).observe(request.duration_s)

    def on_event(self, target: str, event: ChatEvent | RunEvent) -> None:
        """Count an event of a session or run."""
        del target
        match event:
            case CellStarted() | ToolUsed() | ModelReplied():
                self._use(event.usage)
            case CellEnded():
                self._cells.labels("failed" if event.failed else "succeeded").inc()
                self._cell_seconds.observe(event.duration_s)
            case TurnEnded():
                self._use(event.usage)
                self._turns.labels(event.status).inc()
            case Verified():
                self._verdicts.labels("accepted" if event.verdict.accepted else "rejected").inc()
            case RunEnded():
                self._runs.labels(event.outcome.status.value).inc()
                self._run_seconds.observe(event.outcome.wall_s)
            case _:
                pass

    def _use(self, usage: Usage) -> None:
        self._tokens.labels("input").inc(usage.input_tokens)
        self._tokens.labels("output").inc(usage.output_tokens)
        self._cost.inc(usage.cost_usd or 0.0)

    def read_gauges(self, server: ServerState) -> None:
        """Set the gauges of open sessions, turns and runs."""
        self._open.set(server.chats.open_count)
        self._busy.set(server.chats.busy_count)
        self._unfinished.set(server.runs.unfinished_count)
        self._draining.set(server.draining)

    async def watch_loop(self) -> None:
        """Measure the lag of the event loop; the gauge falls slowly, so that peaks stay visible."""
        worst = 0.0
        while True:
            due = time.perf_counter() + _LAG_EVERY_S
            await anyio.sleep(_LAG_EVERY_S)
            worst = max(worst * 0.95, time.perf_counter() - due)
            self._lag.set(worst)


_TEXT: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Numbers"}
}


@metrics_router.get("/metrics", response_class=Response, responses={**documented(), **_TEXT})
async def read_metrics(request: Request, server: Server, caller: ReadAccess) -> Response:
    """Return all metrics in the Prometheus format."""
    del caller
    metrics: Metrics = request.app.state.metrics
    metrics.read_gauges(server)
    return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


_AGENT: Final = "assay"
_MOST_MODELS: Final = 10_000


@dataclass(slots=True, kw_only=True)
class _Parent:
    """A span in progress that has child spans."""

    span: Span
    since_ns: int
    """End of its last child, which is the start of the next one."""
    model: str = ""
    tokens: Usage


class Tracing:
    """Builds spans from events. Implements `Observer`."""

    def __init__(self, tracer: Tracer, *, content: bool) -> None:
        self._tracer = tracer
        self._content = content
        self._open: dict[str, _Parent] = {}
        """Spans of turns and runs, by session and run."""
        self._models: dict[str, str] = {}

    def note_request(self, request: RequestCompleted) -> None:
        """Record a span for a request."""
        now = time.time_ns()
        span = self._tracer.start_span(
            f"{request.method} {request.route}".strip(),
            context=parent_context({"traceparent": request.caller_trace}),
            kind=SpanKind.SERVER,
            start_time=now - int(request.duration_s * 1e9),
            attributes={
                names.METHOD: request.method,
                names.ROUTE: request.route,
                names.STATUS: request.status,
            },
        )
        if request.status >= 500:  # noqa: PLR2004 - HTTP
            span.set_status(StatusCode.ERROR)
        span.end(now)

    def on_event(self, target: str, event: ChatEvent | RunEvent) -> None:
        """Record a span for an event of a session or run."""
        match event:
            case ModelChosen():
                if len(self._models) >= _MOST_MODELS:
                    self._models.clear()
                self._models[target] = event.model
            case TurnStarted():
                self._begin(target, self._models.get(target, ""), {names.CONVERSATION: target})
                self._set_content(self._open[target].span, {names.INPUT_MESSAGES: event.message})
            case RunStarted():
                self._begin(target, event.model, {names.RUN: target})
            case RunResumed():
                self._begin(target, "", {names.RUN: target})
            case _:
                if parent := self._open.get(target):
                    self._hear_within(target, parent, event)

    def _hear_within(self, target: str, parent: _Parent, event: ChatEvent | RunEvent) -> None:
        match event:
            case CellStarted() | ModelReplied():
                self._reply(parent, event.usage)
            case CellEnded():
                content = {names.TOOL_ARGUMENTS: event.code, names.TOOL_RESULT: event.observation}
                self._tool(parent, "python", content, failed=event.failed)
            case ToolUsed():
                self._reply(parent, event.usage)
                content = {names.TOOL_ARGUMENTS: event.arguments, names.TOOL_RESULT: event.answer}
                self._tool(parent, event.tool, content, failed=event.failed)
            case TurnEnded():
                self._reply(parent, event.usage)
                self._set_content(parent.span, {names.OUTPUT_MESSAGES: event.text})
                self._end(target, names.TURN_STATUS, event.status)
            case AttemptStarted():
                parent.span.add_event("attempt", {names.ATTEMPT: event.attempt})
            case Verified():
                verdict = "accepted" if event.verdict.accepted else "rejected"
                parent.span.add_event(
                    "verified", {names.ATTEMPT: event.attempt, names.VERDICT: verdict}
                )
            case RunEnded():
                self._end(target, names.RUN_STATUS, event.outcome.status.value)
            case _:
                pass

    def _begin(self, target: str, model: str, attributes: dict[str, Any]) -> None:
        span = self._tracer.start_span(
            names.INVOKE_AGENT,
            attributes={
                names.OPERATION: "invoke_agent",
                names.AGENT: _AGENT,
                names.MODEL: model,
                **attributes,
            },
        )
        self._open[target] = _Parent(
            span=span, since_ns=time.time_ns(), model=model, tokens=Usage()
        )

    def _reply(self, parent: _Parent, usage: Usage) -> None:
        """Record a span for a model reply: from the end of the previous span until now."""
        if not usage.calls:
            return
        parent.tokens += usage
        provider, _, model = parent.model.partition(":")
        attributes = {
            names.OPERATION: "chat",
            names.PROVIDER: provider,
            names.MODEL: model,
            names.INPUT_TOKENS: usage.input_tokens,
            names.OUTPUT_TOKENS: usage.output_tokens,
        }
        with self._child(
            parent, f"{names.CHAT} {model or provider}".strip(), attributes, SpanKind.CLIENT
        ):
            pass

    def _tool(self, parent: _Parent, tool: str, content: dict[str, str], *, failed: bool) -> None:
        attributes = {
            names.OPERATION: "execute_tool",
            names.TOOL: tool,
            names.TOOL_TYPE: "function",
        }
        with self._child(
            parent, f"{names.EXECUTE_TOOL} {tool}", attributes, SpanKind.INTERNAL
        ) as span:
            self._set_content(span, content)
            if failed:
                span.set_status(StatusCode.ERROR)
                span.set_attribute(names.ERROR, "failed")

    @contextmanager
    def _child(
        self, parent: _Parent, name: str, attributes: dict[str, Any], kind: SpanKind
    ) -> Generator[Span]:
        span = self._tracer.start_span(
            name,
            context=set_span_in_context(parent.span),
            kind=kind,
            attributes=attributes,
            start_time=parent.since_ns,
        )
        yield span
        span.end()
        parent.since_ns = time.time_ns()

    def _end(self, target: str, name: str, status: str) -> None:
        parent = self._open.pop(target)
        parent.span.set_attributes(
            {
                name: status,
                names.INPUT_TOKENS: parent.tokens.input_tokens,
                names.OUTPUT_TOKENS: parent.tokens.output_tokens,
            }
        )
        if status == "failed":
            parent.span.set_status(StatusCode.ERROR)
        parent.span.end()

    def _set_content(self, span: Span, content: dict[str, str]) -> None:
        if self._content:
            for name, text in content.items():
                span.set_attribute(name, json.dumps(text))


@contextmanager
def open_tracing(endpoint: str | None, *, content: bool) -> Generator[Tracing | None]:
    """Export spans to an endpoint over OTLP; flush the rest before this ends."""
    with open_tracer(endpoint, "assay-serve", extra="serve") as tracer:
        yield Tracing(tracer, content=content) if tracer else None
