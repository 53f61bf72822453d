from collections.abc import Iterable
from typing import Any

import pytest

from assay.server.api.openai_compat import TurnText

CELL = {"kind": "cell_started", "thought": "I compute it.", "code": "print(6 * 7)"}
PRINTED = {"kind": "cell_ended", "observation": "42"}
ENDED = {"kind": "turn_ended", "text": "It is 42."}
TURN = "I compute it.\n\n```python\nprint(6 * 7)\n```\n\n```text\n42\n```\n\nIt is 42."


def spoken(text: str, size: int = 3) -> list[dict[str, Any]]:
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    return [{"kind": "reply_delta", "text": piece} for piece in pieces]


def told(events: Iterable[dict[str, Any]]) -> list[str]:
    telling = TurnText()
    return [piece for event in events if (piece := telling.add(event))]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_words_are_told_as_they_come_and_once(size: int) -> None:
    first = spoken("\nI compute it.\n\n```python\nprint(6 * 7)\n```\n", size)
    pieces = told([*first, CELL, PRINTED, *spoken("It is 42.\n", size), ENDED])

    assert "".join(pieces) == TURN
    assert len(pieces) >= 4 + (size < 7) * 4


def test_without_words_on_the_way_the_text_is_the_same() -> None:
    assert "".join(told([CELL, PRINTED, ENDED])) == TURN


def test_an_answer_with_code_that_is_only_shown_is_told_whole() -> None:
    answer = "Write `x` so:\n\n```text\nx = 1\n```\n\nThat is all."

    pieces = told([*spoken(answer), {"kind": "turn_ended", "text": answer}])

    assert "".join(pieces) == answer


def test_a_turn_that_fails_says_so_after_what_was_told() -> None:
    failed = {"kind": "turn_ended", "text": "The model is gone."}

    assert "".join(told([*spoken("I beg"), failed])) == "I beg\n\nThe model is gone."


def test_words_that_were_lost_on_the_way_are_told_again() -> None:
    some = spoken("It is 42.")

    assert "".join(told([some[0], some[2], ENDED])) == "It 42.\n\nIt is 42."


def test_half_a_character_is_told_as_a_question() -> None:
    (piece,) = told([{"kind": "turn_ended", "text": "a \ud83d b"}])

    assert piece == "a ? b"


def test_what_nobody_has_to_see_is_not_told() -> None:
    assert told([{"kind": "cell_output_delta", "text": "4"}, {"kind": "state_rebuilt"}]) == []
