"""What is traced of requests and turns: names and numbers, by OpenTelemetry's conventions."""

from collections.abc import Generator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from assay.contracts.chat import CellEnded, CellStarted, ModelChosen, TurnEnded, TurnStarted
from assay.contracts.messages import Usage
from assay.server.api.middleware import RequestCompleted
from assay.server.api.monitoring import Tracing
from assay.telemetry import events as names

USED = Usage(input_tokens=10, output_tokens=5, calls=1)
WORDS = "tell nobody"


def traced(spans: InMemorySpanExporter, *, content: bool = False) -> Tracing:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Tracing(provider.get_tracer("test"), content=content)


@pytest.fixture
def spans() -> Generator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    yield exporter
    exporter.shutdown()


def a_turn(tracing: Tracing, *, failed: bool = False) -> None:
    tracing.on_event("calm-owl", ModelChosen(model="openai:gpt-5"))
    tracing.on_event("calm-owl", TurnStarted(turn=1, message=WORDS))
    cell = CellStarted(turn=1, step=1, thought="", code=WORDS, usage=USED)
    tracing.on_event("calm-owl", cell)
    ended = CellEnded(
        turn=1,
        step=1,
        code=WORDS,
        observation=WORDS,
        failed=failed,
        kept=True,
        artifacts=(),
        duration_s=0.1,
    )
    tracing.on_event("calm-owl", ended)
    answer = TurnEnded(turn=1, status="answered", text=WORDS, usage=USED)
    tracing.on_event("calm-owl", answer)


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def test_a_turn_is_an_agent_at_work_with_replies_and_tools_beneath(
    spans: InMemorySpanExporter,
) -> None:
    a_turn(traced(spans))
    found = by_name(spans)
    agent = found[names.INVOKE_AGENT]
    for name in ("chat gpt-5", "execute_tool python"):
        parent = found[name].parent
        assert parent is not None
        assert parent.span_id == agent.get_span_context().span_id
    told = dict(agent.attributes or {})
    assert told[names.CONVERSATION] == "calm-owl"
    assert (told[names.INPUT_TOKENS], told[names.OUTPUT_TOKENS]) == (20, 10)
    assert dict(found["chat gpt-5"].attributes or {})[names.PROVIDER] == "openai"


@pytest.mark.parametrize("content", [True, False])
def test_what_was_said_and_run_is_traced_only_where_it_is_asked_for(
    spans: InMemorySpanExporter, *, content: bool
) -> None:
    a_turn(traced(spans, content=content))
    text = "".join(str(dict(span.attributes or {})) for span in spans.get_finished_spans())
    assert (WORDS in text) is content


def test_a_cell_that_failed_is_marked(spans: InMemorySpanExporter) -> None:
    a_turn(traced(spans), failed=True)
    assert not by_name(spans)["execute_tool python"].status.is_ok


def test_a_request_is_named_by_its_route(spans: InMemorySpanExporter) -> None:
    tracing = traced(spans)
    route = "/v1/runs/{run_id}"
    tracing.note_request(RequestCompleted(method="GET", route=route, status=500, duration_s=0.1))
    (span,) = spans.get_finished_spans()
    assert span.name == f"GET {route}"
    assert not span.status.is_ok
