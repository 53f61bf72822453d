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
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
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
async def is_ready(request: Request, response: Response, house: Server) -> Readiness:
    """Check the database, the executor and the model.

    The status is 503 during shutdown, and if the database or the executor fails.
    """
    troubles = await house.health.troubles()
    failed = {part: trouble for part, trouble in troubles.items() if trouble}
    if house.draining or _NEEDED & failed.keys():
        response.status_code = 503
    details = dict[str, str](failed)
    if house.draining:
        details["shutdown"] = "the service is ending"
    show = bool(details) and await _is_admin(request, house)
    return Readiness(
        status="degraded" if details else "ready",
        checks={part: "failed" if part in failed else "ok" for part in COMPONENTS},
        details=details if show else None,
    )


async def _is_admin(request: Request, house: ServerState) -> bool:
    try:
        caller = await house.access.identify(request.headers.get("authorization", ""))
    except AssayError:
        return False
    return caller.role == "admin"


metrics_router = APIRouter(tags=["operations"])

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


@metrics_router.get("/metrics", response_class=Response, responses={**documented(), **_TEXT})
async def read_metrics(request: Request, house: Server, caller: ReadAccess) -> Response:
    """Return all metrics in the Prometheus format."""
    del caller
    metrics: Metrics = request.app.state.metrics
    metrics.look_at(house)
    return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


_AGENT: Final = "assay"
_MOST_MODELS: Final = 10_000
_W3C: Final = TraceContextTextMapPropagator()


@dataclass(slots=True, kw_only=True)
class _Under:
    """A span in progress that has child spans."""

    span: Span
    since_ns: int
    """End of its last child, which is the start of the next one."""
    model: str = ""
    tokens: Usage


class Tracing:
    """Builds spans from events. Implements `Watcher`."""

    def __init__(self, processor: SpanProcessor, *, content: bool) -> None:
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "assay-serve"}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("assay.serve")
        self._content = content
        self._turns: dict[str, _Under] = {}
        self._runs: dict[str, _Under] = {}
        self._models: dict[str, str] = {}

    def close(self) -> None:
        """Export the remaining spans."""
        self._provider.shutdown()

    def answered(self, answered: RequestCompleted) -> None:
        """Record a span for a request."""
        now = time.time_ns()
        span = self._tracer.start_span(
            f"{answered.method} {answered.route}".strip(),
            context=_W3C.extract({"traceparent": answered.caller_trace}),
            kind=SpanKind.SERVER,
            start_time=now - int(answered.duration_s * 1e9),
            attributes={
                names.METHOD: answered.method,
                names.ROUTE: answered.route,
                names.STATUS: answered.status,
            },
        )
        if answered.status >= 500:  # noqa: PLR2004 - HTTP
            span.set_status(StatusCode.ERROR)
        span.end(now)

    def dialogue_event(self, session: str, event: ChatEvent) -> None:
        """Record a span for an event of a session."""
        match event:
            case ModelChosen():
                if len(self._models) >= _MOST_MODELS:
                    self._models.clear()
                self._models[session] = event.model
            case TurnStarted():
                under = self._begin(self._models.get(session, ""), {names.CONVERSATION: session})
                self._turns[session] = under
                self._tell(under.span, {names.INPUT_MESSAGES: event.message})
            case CellStarted() | CellEnded() | ToolUsed():
                if under := self._turns.get(session):
                    self._step(under, event)
            case TurnEnded():
                if under := self._turns.pop(session, None):
                    self._reply(under, event.usage)
                    self._tell(under.span, {names.OUTPUT_MESSAGES: event.text})
                    failed = event.status == "failed"
                    self._end(under, {names.TURN_STATUS: event.status}, failed=failed)
            case _:
                pass

    def run_event(self, run: str, event: RunEvent) -> None:
        """Record a span for an event of a run."""
        match event:
            case RunStarted():
                self._runs[run] = self._begin(event.model, {names.RUN: run})
            case RunResumed():
                self._runs[run] = self._begin("", {names.RUN: run})
            case _:
                if under := self._runs.get(run):
                    self._in_run(run, under, event)

    def _in_run(self, run: str, under: _Under, event: RunEvent) -> None:
        match event:
            case AttemptStarted():
                under.span.add_event("attempt", {names.ATTEMPT: event.attempt})
            case ModelReplied():
                self._reply(under, event.usage)
            case Verified():
                verdict = "accepted" if event.verdict.accepted else "rejected"
                under.span.add_event(
                    "verified", {names.ATTEMPT: event.attempt, names.VERDICT: verdict}
                )
            case RunEnded():
                del self._runs[run]
                status = event.outcome.status.value
                self._end(under, {names.RUN_STATUS: status}, failed=status == "failed")
            case _:
                pass

    def _begin(self, model: str, attributes: dict[str, Any]) -> _Under:
        span = self._tracer.start_span(
            names.INVOKE_AGENT,
            attributes={
                names.OPERATION: "invoke_agent",
                names.AGENT: _AGENT,
                names.MODEL: model,
                **attributes,
            },
        )
        return _Under(span=span, since_ns=time.time_ns(), model=model, tokens=Usage())

    def _step(self, under: _Under, event: CellStarted | CellEnded | ToolUsed) -> None:
        match event:
            case CellStarted():
                self._reply(under, event.usage)
            case CellEnded():
                told = {names.TOOL_ARGUMENTS: event.code, names.TOOL_RESULT: event.observation}
                self._tool(under, "python", told, failed=event.failed)
            case ToolUsed():
                self._reply(under, event.usage)
                told = {names.TOOL_ARGUMENTS: event.arguments, names.TOOL_RESULT: event.answer}
                self._tool(under, event.tool, told, failed=event.failed)

    def _reply(self, under: _Under, usage: Usage) -> None:
        """Record a span for a model reply: from the end of the previous span until now."""
        if not usage.calls:
            return
        under.tokens += usage
        provider, _, model = under.model.partition(":")
        span = self._beneath(
            under,
            f"{names.CHAT} {model or provider}".strip(),
            {
                names.OPERATION: "chat",
                names.PROVIDER: provider,
                names.MODEL: model,
                names.INPUT_TOKENS: usage.input_tokens,
                names.OUTPUT_TOKENS: usage.output_tokens,
            },
            SpanKind.CLIENT,
        )
        span.end()
        under.since_ns = time.time_ns()

    def _tool(self, under: _Under, tool: str, told: dict[str, str], *, failed: bool) -> None:
        span = self._beneath(
            under,
            f"{names.EXECUTE_TOOL} {tool}",
            {names.OPERATION: "execute_tool", names.TOOL: tool, names.TOOL_TYPE: "function"},
            SpanKind.INTERNAL,
        )
        self._tell(span, told)
        if failed:
            span.set_status(StatusCode.ERROR)
            span.set_attribute(names.ERROR, "failed")
        span.end()
        under.since_ns = time.time_ns()

    def _beneath(
        self, under: _Under, name: str, attributes: dict[str, Any], kind: SpanKind
    ) -> Span:
        return self._tracer.start_span(
            name,
            context=set_span_in_context(under.span),
            kind=kind,
            attributes=attributes,
            start_time=under.since_ns,
        )

    def _end(self, under: _Under, attributes: dict[str, Any], *, failed: bool) -> None:
        under.span.set_attributes(
            {
                **attributes,
                names.INPUT_TOKENS: under.tokens.input_tokens,
                names.OUTPUT_TOKENS: under.tokens.output_tokens,
            }
        )
        if failed:
            under.span.set_status(StatusCode.ERROR)
        under.span.end()

    def _tell(self, span: Span, told: dict[str, str]) -> None:
        if self._content:
            for name, text in told.items():
                span.set_attribute(name, json.dumps(text))


@contextmanager
def open_tracing(endpoint: str | None, *, content: bool) -> Generator[Tracing | None]:
    """Export spans to an endpoint over OTLP; flush the rest before this ends."""
    if endpoint is None:
        yield None
        return
    tracing = Tracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)), content=content)
    try:
        yield tracing
    finally:
        tracing.close()
