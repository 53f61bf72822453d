import pytest
from hypothesis import given

from assay.cli.render.text import last_lines, one_line, plain, shortened, visible
from tests.support.runs import CONTROLS, HOSTILE_PIECES, hostile_texts


def test_escape_sequences_are_taken_out_of_what_a_program_printed() -> None:
    printed = "\x1b[1;31mred\x1b[0m \x1b]0;title\x07and \x1b]8;;x\x1b\\link\x1b]8;;\x1b\\ \x1bc."

    assert plain(printed) == "red and link ."


def test_in_a_change_nothing_is_taken_out_but_everything_is_seen() -> None:
    assert visible("a\x1b[31mb\r\x7f\u202ec\x85") == "a␛[31mb␍␡\\u202ec\\u0085"


@pytest.mark.parametrize("text", ["naïve", "漢字", "👩‍👩‍👧", "a  b", "[bold]x[/]"])
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert plain(text) == visible(text) == text


def test_an_escape_sequence_without_an_end_is_shown() -> None:
    assert plain("\x1b]0;for ever") == "␛]0;for ever"


def test_one_line_is_one_line_and_short() -> None:
    assert one_line("  a\n\n b\r\nc\td ") == "a b c d"
    assert one_line("word " * 100, 12) == "word word w…"


def test_a_short_text_is_not_cut() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "ab…"


def test_the_last_lines_are_those_that_a_terminal_would_show() -> None:
    printed = "one\ntwo\r\n 10 %\r 50 %\r100 %\nend\n"

    assert last_lines(printed, 2) == ["100 %", "end"]
    assert last_lines(printed, 9) == ["one", "two", "100 %", "end"]
    assert last_lines("", 9) == []


def test_a_very_long_line_is_cut() -> None:
    (line,) = last_lines("x" * 10_000_000, 1)

    assert len(line) <= 1000


@given(hostile_texts())
def test_nothing_that_a_terminal_obeys_gets_through(text: str) -> None:
    for shown in (plain(text), visible(text), one_line(text), "\n".join(last_lines(text, 5))):
        assert not CONTROLS.search(shown)


@pytest.mark.parametrize("text", HOSTILE_PIECES[:15])
def test_the_check_for_what_a_terminal_obeys_can_fail(text: str) -> None:
    assert CONTROLS.search(text)
