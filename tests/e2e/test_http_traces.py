"""What `assay serve` tells a collector of traces, over OTLP: names and numbers, and no words."""

from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.otlp_server import attributes_of, open_collector
from tests.support.served import GOAL, RIGHT, SMALL, events, served

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAID = "the launch code is 4711"
CELL = {"text": f"```python\nprint({SAID!r})\n```"}
ANSWER = {"text": "That is it."}


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name.startswith(name)]


def test_a_turn_is_a_span_with_its_replies_and_cells_below(tmp_path: Path) -> None:
    with open_collector() as collector:
        more = {"ASSAY_SERVE__OTLP_ENDPOINT": collector.endpoint}
        with served(tmp_path, [CELL, ANSWER], more=more) as service, service.client() as client:
            caller = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            told = client.post("/chat", json={"message": SAID}, headers=caller).json()
            assert told["observation"] == SAID
            assert service.stop() == 0

    assert collector.services == {"assay-serve"}
    (request,) = named(collector.spans, "POST /chat")
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    (turn,) = named(collector.spans, "invoke_agent assay")
    assert attributes_of(turn)["gen_ai.conversation.id"] == told["session_id"]
    below = [span for span in collector.spans if span.parent_span_id == turn.span_id]
    operations = [attributes_of(span)["gen_ai.operation.name"] for span in below]
    assert operations == ["chat", "execute_tool", "chat"]
    assert all(turn.start_time_unix_nano <= span.start_time_unix_nano for span in below)
    assert SAID.encode() not in b"".join(span.SerializeToString() for span in collector.spans)


@pytest.mark.slow
def test_a_run_is_a_span_and_words_are_told_only_if_asked_for(tmp_path: Path) -> None:
    with open_collector() as collector:
        more = {
            "ASSAY_SERVE__OTLP_ENDPOINT": collector.endpoint,
            "ASSAY_SERVE__TRACE_CONTENT": "true",
        }
        script = [SMALL, {"text": f"```python\n{RIGHT}```"}]
        with served(tmp_path, script, more=more) as service, service.client() as client:
            run = client.post("/v1/runs", json=GOAL).json()["id"]
            assert events(client, f"/v1/runs/{run}/events")[-1][1] == "end"
            client.post("/chat", json={"message": SAID})
            assert service.stop() == 0

    spans = {attributes_of(span).get("assay.run.status", ""): span for span in collector.spans}
    assert attributes_of(spans["accepted"])["assay.run"] == run
    assert [event.name for event in spans["accepted"].events] == ["attempt", "verified"]
    assert SAID.encode() in b"".join(span.SerializeToString() for span in collector.spans)
