"""From what the engine says to a reply."""

import pytest

from assay.contracts.errors import ContextOverflowError, ModelRefusedError, ModelUnavailableError
from assay.contracts.messages import StopReason, Usage
from assay.contracts.ports import ignore_text
from assay.models.local.llama_process import EngineMessage
from assay.models.local.model import Answer


def heard(line: str) -> EngineMessage:
    return EngineMessage.model_validate_json(line)


def test_pieces_become_the_text_that_was_told() -> None:
    told: list[str] = []
    answer = Answer("```", told.append)

    assert not answer.hear(heard('{"of": 1}'))
    assert told == []
    assert not answer.hear(heard('{"of": 1, "text": "py"}'))
    assert answer.hear(heard('{"of": 1, "end": {"finish": "stop"}}'))

    assert told == ["```", "py"]
    assert answer.as_reply("m").message.text == "```py"


def test_a_reply_without_a_word_is_its_prefill() -> None:
    told: list[str] = []
    answer = Answer("x = ", told.append)

    answer.hear(heard('{"of": 1, "end": {"finish": "stop"}}'))

    assert told == ["x = "]
    assert answer.as_reply("m").message.text == "x = "


def test_usage_and_stop_reason_are_taken_over() -> None:
    answer = Answer("", ignore_text)

    answer.hear(
        heard(
            '{"of": 1, "end": {"finish": "length", "usage": {"prompt_tokens": 9,'
            ' "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}}}'
        )
    )

    reply = answer.as_reply("m")
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
        Answer("x", told.append).hear(heard(f'{{"of": 1, "error": {{"type": "{kind}"}}}}'))

    assert told == []
