"""From what the engine says to a reply."""

import pytest

from assay.contracts.errors import ContextOverflowError, ModelRefusedError, ModelUnavailableError
from assay.contracts.messages import Reply, Request, StopReason, Usage
from assay.contracts.ports import OnText, ignore_text
from assay.models.local.llama_process import EngineMessage
from assay.models.local.model import take_message
from assay.models.stream_builder import ReplyDraft


def draft_of(prefill: str, on_text: OnText) -> ReplyDraft:
    return ReplyDraft(Request(messages=()), on_text, prefill=prefill)


def finish(draft: ReplyDraft) -> Reply:
    assert draft.stop_reason is not None
    return draft.finish("m", draft.stop_reason, by="m")


def heard(line: str) -> EngineMessage:
    return EngineMessage.model_validate_json(line)


def test_pieces_become_the_text_that_was_told() -> None:
    told: list[str] = []
    draft = draft_of("```", told.append)

    assert not take_message(heard('{"of": 1}'), draft)
    assert told == []
    assert not take_message(heard('{"of": 1, "text": "py"}'), draft)
    assert take_message(heard('{"of": 1, "end": {"finish": "stop"}}'), draft)

    assert told == ["```", "py"]
    assert finish(draft).message.text == "```py"


def test_a_reply_without_a_word_is_its_prefill() -> None:
    told: list[str] = []
    draft = draft_of("x = ", told.append)

    take_message(heard('{"of": 1, "end": {"finish": "stop"}}'), draft)

    assert finish(draft).message.text == "x = "
    assert told == ["x = "]


def test_usage_and_stop_reason_are_taken_over() -> None:
    draft = draft_of("", ignore_text)

    take_message(
        heard(
            '{"of": 1, "end": {"finish": "length", "usage": {"prompt_tokens": 9,'
            ' "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}}}'
        ),
        draft,
    )

    reply = finish(draft)
    assert reply.stop_reason is StopReason.LENGTH
    assert reply.usage == Usage(
        input_tokens=9, cached_input_tokens=5, output_tokens=4, calls=1, cost_usd=0.0
    )


ERRORS = {
    "exceed_context_size_error": ContextOverflowError,
    "invalid_request_error": ModelRefusedError,
    "not_heard_of_yet": ModelRefusedError,
    "server_error": ModelUnavailableError,
    "unavailable_error": ModelUnavailableError,
}


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_of_the_engine_is_one_the_port_promises(kind: str) -> None:
    told: list[str] = []

    with pytest.raises(ERRORS[kind]):
        take_message(
            heard(f'{{"of": 1, "error": {{"type": "{kind}"}}}}'), draft_of("x", told.append)
        )

    assert told == []
