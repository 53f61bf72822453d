"""OpenTelemetry traces, if an endpoint is configured: requests, turns, replies, cells, runs.

Spans are built from the events that all observers receive. They hold names and numbers; they hold
messages, code and output only with `serve.trace_content`.
"""

import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from assay.contracts.chat import (
    CellEnded,
    CellStarted,
    ChatEvent,
    ModelChosen,
    ToolUsed,
    TurnEnded,
    TurnStarted,
)
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
from assay.server.api.middleware import RequestCompleted
from assay.telemetry import span_names as names

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
