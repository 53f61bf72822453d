"""Every wire format keeps every promise of the model port."""

import pytest

from tests.conformance.model import MODEL_PROMISES, ModelPromise
from tests.support.model_servers.subjects import (
    ANTHROPIC,
    GEMINI,
    SUBJECTS,
    PlayedSubject,
)

EXCUSED = {
    (GEMINI.name, "a_beginning_is_told_and_returned_once"),
    (GEMINI.name, "an_answer_begins_as_it_was_asked_to"),
    (GEMINI.name, "a_beginning_to_continue_arrives"),
    (ANTHROPIC.name, "a_seed_arrives"),
}
"""Gemini's API has no way to continue a beginning, and Anthropic's knows no seeds."""

HELD_TO = [
    pytest.param(subject, promise, id=f"{subject.name}-{promise.name}")
    for subject in SUBJECTS
    for promise in MODEL_PROMISES
    if not promise.excuse(subject)
]


@pytest.mark.parametrize(("subject", "promise"), HELD_TO)
async def test_wire_format_keeps(subject: PlayedSubject, promise: ModelPromise) -> None:
    await promise(subject)


def test_nothing_is_excused_but_what_a_wire_format_cannot_do() -> None:
    excused = {
        (subject.name, promise.name)
        for subject in SUBJECTS
        for promise in MODEL_PROMISES
        if promise.excuse(subject)
    }

    assert excused == EXCUSED
