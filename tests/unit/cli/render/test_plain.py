from io import BytesIO, StringIO, TextIOWrapper
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from assay.cli.render.text import clock, compact, cost, event_line, listed
from assay.cli.render.view import PlainView, open_view
from assay.contracts.events import (
    Executed,
    Planned,
    Reflected,
    RunEnded,
    RunEvent,
    Screened,
    TextDelta,
    Verified,
)
from assay.contracts.goal import Status
from assay.contracts.messages import Usage
from assay.contracts.verdict import CheckReport, Grade, TestMatrix
from tests.support.runs import (
    CONTROLS,
    a_finding,
    a_run_of_events,
    a_verdict,
    an_outcome,
    hostile_events,
)

WHOLE_RUN = """\
run 20260301-101500-slugify: Write slugify(text, *, separator) so that the tests pass. \
(model local:qwen2.5-coder-1.5b, sandbox native, isolated, files in /home/me/project)
plan: 3 steps; will write slugify.py, README.md; decided by pytest -q tests/test_slugify.py; \
1 lesson recalled; offers fold_accents of earlier runs
wrote checks that fail on the untouched files: checks/test_readme.py
attempt 1: an independent sample
attempt 1: modified slugify.py
attempt 1: tried out: pytest -q tests/test_slugify.py: 2 of 4 tests pass, not \
tests/test_slugify.py::test_joins_words_with_a_dash, tests/test_slugify.py::test_folds_accents
attempt 1: verified, not accepted: 2 of 8 tests do not pass
attempt 1: unicodedata was not imported; next: a repair in the same context
attempt 2: a repair in the same context
attempt 2: modified slugify.py
attempt 2: tried out: pytest -q tests/test_slugify.py: 5 of 8 tests pass, not \
tests/test_slugify.py::test_keeps_numbers, tests/test_slugify.py::test_strips_the_ends, \
tests/test_slugify.py::test_takes_another_separator
attempt 2: verified, not accepted: 3 of 8 tests do not pass
attempt 2: next: a repair in the same context
attempt 3: a repair in the same context
attempt 3: screening blocked it: slugify.py:3 imports subprocess
attempt 3: a repair in the same context
attempt 3: modified slugify.py
attempt 3: tried out: pytest -q tests/test_slugify.py: 3 of 8 tests pass, not \
tests/test_slugify.py::test_folds_accents, tests/test_slugify.py::test_keeps_numbers, \
tests/test_slugify.py::test_strips_the_ends, \
tests/test_slugify.py::test_takes_another_separator, \
tests/test_slugify.py::test_gives_nothing_for_nothing
attempt 3: verified, not accepted: 5 of 8 tests do not pass
attempt 3 broke tests/test_slugify.py::test_folds_accents, \
tests/test_slugify.py::test_gives_nothing_for_nothing: back to attempt 2
attempt 3: the separator is not used; next: a fresh start
run 20260301-101500-slugify resumes
attempt 4: a fresh start
attempt 4: modified slugify.py
attempt 4: tried out: pytest -q tests/test_slugify.py: 8 of 8 tests pass
attempt 4: verified, accepted (proven): all 8 tests pass
accepted, proven: all 8 tests pass
"""


def shown(events: list[RunEvent], *, verbose: bool = False) -> str:
    output = StringIO()
    with open_view(Console(file=output), verbose=verbose) as watch:
        for event in events:
            watch(event)
    return output.getvalue()


def test_a_whole_run_is_told_line_by_line() -> None:
    assert shown(a_run_of_events()) == WHOLE_RUN


def test_the_example_run_has_every_kind_of_event() -> None:
    assert {type(event) for event in a_run_of_events()} == set(get_args(RunEvent))


def test_verbose_tells_what_the_model_and_the_tools_said() -> None:
    text = shown(a_run_of_events(), verbose=True)

    assert "planning, step 1: replied, 410 tokens\n    1. Read the tests.\n" in text
    assert "    ```python slugify.py\n    import re\n" in text
    assert "attempt 1, step 1: run pytest -q tests/test_slugify.py: failed\n    1 failed" in text
    assert "attempt 4, step 1: run pytest -q tests/test_slugify.py: done\n" in text
    assert "    -def slugify(text):\n" in text
    assert (
        "budget: 44% used; 4 calls, 12.4k tokens read (4.0k cached), 1.6k written, $0.0124, 1:20\n"
        in text
    )


def test_pieces_of_text_make_no_lines() -> None:
    assert shown([TextDelta(attempt=1, text="a\nb")], verbose=True) == ""


def test_a_clean_screening_is_not_told() -> None:
    assert shown([Screened(attempt=1, findings=(), blocked=False)]) == ""


def test_long_texts_are_cut_and_the_rest_is_counted() -> None:
    event = Planned(steps=tuple("abc" * 40), targets=(), checks=())

    assert shown([event], verbose=True).endswith("    60. c\n    (60 lines more)\n")


def test_every_line_is_flushed_as_it_is_written() -> None:
    raw = BytesIO()
    view = PlainView(TextIOWrapper(raw, encoding="utf-8"))

    view(a_run_of_events()[0])

    assert raw.getvalue().startswith(b"run 2026")


def test_a_narrow_encoding_is_no_reason_to_fail() -> None:
    raw = BytesIO()
    view = PlainView(TextIOWrapper(raw, encoding="ascii"))

    view(Reflected(attempt=1, lesson="naïve ✓", next_action=None))

    assert raw.getvalue() == b"attempt 1: na\\xefve \\u2713; next: the run ends\n"


class ClosedPipe(StringIO):
    """What is left of a pipe whose reader went away."""

    def write(self, text: str, /) -> int:
        raise BrokenPipeError(text)


def test_a_reader_that_left_does_not_end_the_run() -> None:
    view = PlainView(ClosedPipe())

    for event in a_run_of_events():
        view(event)


@given(hostile_events(), st.booleans())
def test_no_event_can_write_anything_but_text(event: RunEvent, verbose: bool) -> None:  # noqa: FBT001 - hypothesis gives it
    text = shown([event], verbose=verbose)

    assert not CONTROLS.search(text)
    assert verbose or text.count("\n") <= 1


def test_a_forgery_is_named() -> None:
    event = Verified(attempt=1, verdict=a_verdict("pppppppp", a_finding()))

    assert event_line(event) == (
        "attempt 1: verified, not accepted: the proof was forged; forgery early_exit in "
        "slugify.py:4: os._exit(0) ends the process before the tests report"
    )


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (CheckReport(command="make", runner="command", passed=True, exit_code=0), "make: passes"),
        (
            CheckReport(command="make", runner="command", passed=False, exit_code=2),
            "make: fails, exit code 2",
        ),
        (
            CheckReport(command="make", runner="command", passed=False, explanation="no make"),
            "make: fails, no make",
        ),
    ],
)
def test_a_check_without_tests_is_told_by_how_it_ended(report: CheckReport, line: str) -> None:
    event = Executed(attempt=2, reports=(report,), test_matrix=TestMatrix())

    assert event_line(event) == f"attempt 2: tried out: {line}"


def test_a_forgery_seen_before_the_independent_check_is_named_too() -> None:
    event = Executed(attempt=2, reports=(), test_matrix=TestMatrix(), findings=(a_finding(),))

    assert "tried out: no check was run; forgery early_exit in slugify.py:4" in event_line(event)


@pytest.mark.parametrize("status", list(Status))
def test_every_ending_has_its_words(status: Status) -> None:
    line = event_line(RunEnded(outcome=an_outcome(status)))

    assert line.startswith(status.value.split("_", maxsplit=1)[0].replace("tampered", "not"))
    assert ("proven" in line) == (status is Status.ACCEPTED)


def test_a_grade_is_said_as_it_was_given() -> None:
    line = event_line(RunEnded(outcome=an_outcome(grade=Grade.RAN)))

    assert line == "accepted, ran: all 8 tests pass"


def test_many_names_are_counted_and_a_last_one_is_named() -> None:
    assert listed("abcde") == "a, b, c, d, e"
    assert listed("abcdef") == "a, b, c, d, 2 more"


@pytest.mark.parametrize(
    ("dollars", "text"),
    [(0.0, "free"), (None, "price unknown"), (0.00123, "$0.0012"), (1234.5, "$1,234.50")],
)
def test_a_price_is_told_as_far_as_it_is_known(dollars: float | None, text: str) -> None:
    assert cost(Usage(cost_usd=dollars)) == text


def test_a_model_of_this_machine_is_free() -> None:
    assert cost(Usage(cost_usd=0.0), local=True) == "free, ran on this machine"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (187, "3:07"), (3729, "1:02:09")]
)
def test_a_duration_is_told_as_a_person_would(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(950, "950"), (12_345, "12.3k"), (4_100_000, "4.1M")])
def test_a_large_number_is_told_in_short(number: int, text: str) -> None:
    assert compact(number) == text
