import math
import re
from io import StringIO
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from assay.cli.render.live import LiveView, open_live_view, shared_out
from assay.cli.render.view import open_view
from assay.contracts.events import (
    AttemptStarted,
    BudgetUsed,
    FilesChanged,
    ModelReplied,
    OutputDelta,
    RunEvent,
    RunResumed,
    TextDelta,
    Verified,
)
from assay.contracts.workspace import FileChange
from tests.support.runs import (
    CONTROLS,
    DIFF,
    a_run_of_events,
    a_verdict,
    hostile_events,
    hostile_texts,
    usage,
)

DRAWING = re.compile(r"\x1b\[\?25[lh]|\x1b\[1A|\x1b\[2K|\r")
"""What the live picture itself sends, besides text: hide the cursor, up a line, erase a line."""


def a_console(*, width: int = 100, height: int = 40, colour: str | None = None) -> Console:
    return Console(
        file=StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        force_interactive=True,
        color_system=colour,  # pyright: ignore[reportArgumentType] - one of its words
        legacy_windows=False,
        highlight=False,
    )


def written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def frame(events: list[RunEvent], **size: int) -> str:
    """What the picture looks like after these events."""
    console = a_console(**size)
    view = LiveView(console, now=lambda: 0.0)
    for event in events:
        view.apply(event)
    console.print(view.picture())
    return written(console)


def events_until(kind: str) -> list[RunEvent]:
    events = a_run_of_events()
    return events[: [event.kind for event in events].index(kind) + 1]


def writes(text: str) -> list[RunEvent]:
    return [AttemptStarted(attempt=1, action="sample"), TextDelta(attempt=1, text=text)]


def test_a_picture_has_goal_model_isolation_plan_and_budget() -> None:
    text = frame(events_until("budget_used"))

    assert "Write slugify(text, *, separator) so that the tests pass." in text
    assert "local:qwen2.5-coder-1.5b  native, isolated  /home/me/project" in text
    assert "○ Fold accents, then replace." in text
    assert "11% of budget  $0.0031  1 call  3.1k tokens read, 410 written  20.0 s" in text


def test_files_are_ticked_when_written_and_checks_as_they_end() -> None:
    before = frame(events_until("model_replied")[:-1] + events_until("attempt_started")[2:])
    after = frame(events_until("executed"))

    assert "○ write slugify.py" in before
    assert "○ check pytest" in before
    assert "✓ write slugify.py" in after
    assert "○ write README.md" in after
    assert "✗ check pytest" in after


def test_the_plan_is_ticked_when_all_is_accepted() -> None:
    text = frame(a_run_of_events())

    assert "✓ Fold accents, then replace." in text
    assert "accepted  attempt 4 of 8" in text


def test_code_is_shown_with_its_line_numbers_while_it_is_written() -> None:
    text = frame(writes("Here it is:\n```python\nimport re\n\ndef f("))

    assert "   1 import re\n   2 \n   3 def f(\n" in text
    assert "Here it is" not in text


def test_code_is_coloured_as_what_it_is() -> None:
    console = a_console(colour="standard")
    view = LiveView(console, now=lambda: 0.0)
    for event in writes("```python\nimport re\n"):
        view.apply(event)

    console.print(view.picture())

    assert re.search(r"\x1b\[[\d;]*94[\d;]*mimport", written(console))


def test_of_long_code_the_end_is_shown() -> None:
    code = "\n".join(f"x{number} = {number}" for number in range(1, 400))

    text = frame(writes(f"```python\n{code}"))

    assert " 399 x399 = 399" in text
    assert " 385 x385 = 385" in text
    assert "x384" not in text


def test_prose_is_shown_while_there_is_no_code() -> None:
    assert "I will look first." in frame(writes("I will look first."))


def test_the_code_of_a_whole_reply_stays_to_be_seen() -> None:
    reply = "```python\nimport re\n```\nThat is all."
    replied = ModelReplied(attempt=1, step=1, text=reply, calls=(), usage=usage(1))

    text = frame([*writes("```py"), replied])

    assert "1 import re" in text
    assert "That is all." not in text


def test_a_new_reply_replaces_the_old_one() -> None:
    first = ModelReplied(attempt=1, step=1, text="first words", calls=(), usage=usage(1))

    text = frame([*writes("first"), first, TextDelta(attempt=1, text="second")])

    assert "second" in text
    assert "first" not in text


def test_a_change_is_shown_once_it_is_made() -> None:
    changed = FilesChanged(
        attempt=1,
        changes=(FileChange(path=PurePosixPath("slugify.py"), kind="modified"),),
        diff=DIFF,
        tree="0",
    )

    assert "+import unicodedata" in frame([*writes("```python\nx"), changed])


def test_of_output_the_last_lines_are_shown() -> None:
    printed = [OutputDelta(attempt=1, text=f"line {number}\n") for number in range(30)]

    text = frame([*writes("x"), *printed])

    assert "line 29\n" in text
    assert "line 20\n" in text
    assert "line 19\n" not in text


def test_attempts_side_by_side_do_not_write_over_each_other() -> None:
    text = frame(
        [
            AttemptStarted(attempt=1, action="sample"),
            AttemptStarted(attempt=2, action="sample"),
            TextDelta(attempt=1, text="one says"),
            TextDelta(attempt=2, text="two says"),
        ]
    )

    assert "2 side by side" in text
    assert "one says" in text
    assert "two says" not in text


def test_when_the_first_of_two_is_judged_the_other_is_looked_at() -> None:
    text = frame(
        [
            AttemptStarted(attempt=1, action="sample"),
            AttemptStarted(attempt=2, action="sample"),
            TextDelta(attempt=2, text="two says"),
            Verified(attempt=1, verdict=a_verdict("pppp")),
        ]
    )

    assert "attempt 2" in text
    assert "two says" in text


def test_a_wide_terminal_shows_code_and_tests_side_by_side() -> None:
    text = frame(events_until("reflected")[:-1], width=140)

    assert re.search(r"^change ─+  plan ─+", text, re.MULTILINE)


@pytest.mark.parametrize("width", [1, 2, 10, 25, 60, 115, 116, 400])
@pytest.mark.parametrize("height", [1, 2, 5, 12, 24, 200])
def test_a_picture_never_leaves_its_terminal(width: int, height: int) -> None:
    for count in range(0, len(a_run_of_events()), 6):
        lines = frame(a_run_of_events()[:count], width=width, height=height).splitlines()

        assert len(lines) <= max(height - 1, 1)
        assert all(len(line) <= max(width - 1, 1) for line in lines)


@given(st.lists(hostile_events(), max_size=8), st.integers(1, 150), st.integers(1, 50))
@settings(max_examples=150)
def test_no_event_in_any_order_breaks_the_picture(
    events: list[RunEvent], width: int, height: int
) -> None:
    assert not CONTROLS.search(frame(events, width=width, height=height))


@given(hostile_texts())
@settings(max_examples=50)
def test_what_a_model_writes_does_nothing_to_the_terminal(text: str) -> None:
    console = a_console()

    with open_view(console, verbose=True) as watch:
        watch(AttemptStarted(attempt=1, action="sample"))
        watch(TextDelta(attempt=1, text=f"```python\n{text}"))
        watch(OutputDelta(attempt=1, text=text))

    assert not CONTROLS.search(DRAWING.sub("", written(console)))


def test_markup_is_text() -> None:
    text = frame([*writes("[bold red]x[/] :smile:"), OutputDelta(attempt=1, text="[/]")])

    assert "[bold red]x[/] :smile:" in text
    assert "[/]\n" in text


def test_what_should_be_remembered_is_left_above_the_picture() -> None:
    console = a_console()

    with open_view(console, verbose=False) as watch:
        for event in a_run_of_events():
            watch(event)

    text = written(console)
    assert "✗ attempt 1: verified, not accepted: 2 of 8 tests do not pass\n" in text
    assert "! attempt 3: screening blocked it: slugify.py:3 imports subprocess\n" in text
    assert "✓ attempt 4: verified, accepted (proven): all 8 tests pass\n" in text
    assert "modified slugify.py\n" not in text


def test_the_cursor_is_given_back_when_something_goes_wrong() -> None:
    console = a_console()

    def break_off() -> None:
        with open_view(console, verbose=False) as watch:
            watch(a_run_of_events()[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()

    assert written(console).rfind("\x1b[?25h") > written(console).rfind("\x1b[?25l")


def test_a_frame_is_erased_whole_when_the_terminal_has_become_narrower() -> None:
    console = a_console(width=100)

    with open_live_view(console, verbose=False, frames_per_s=0.001):
        console.print("before")
        frame_lines = written(console).rpartition("before\n")[2].split("\n")
        console.width = 40
        console.print("after")
        erasing = written(console).rpartition("before")[2].partition("after")[0]

    # By wrapping, the terminal has made more lines of it than were drawn.
    wrapped = sum(max(math.ceil(len(line) / 40), 1) for line in frame_lines)
    assert wrapped > len(frame_lines)
    assert erasing.count("\x1b[1A") == wrapped - 1


def test_a_question_can_be_asked_beside_the_picture() -> None:
    console = a_console()

    with open_live_view(console, verbose=False, frames_per_s=0.001) as view:
        view(a_run_of_events()[0])
        before = written(console)
        with view.aside():
            cursor_is_back = written(console).rfind("\x1b[?25h") >= len(before)
            console.print("Write the files?")
            asked = written(console)
        view(RunResumed(run="r"))

    assert cursor_is_back
    assert asked.endswith("Write the files?\n")
    assert written(console).rfind("budget") > len(asked)


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = a_console()

    with open_view(console, verbose=False) as watch:
        watch(AttemptStarted(attempt=1, action="fresh"))

    assert written(console) == "attempt 1: a fresh start\n"


def test_the_clock_goes_on_between_two_accounts() -> None:
    times = iter([100.0, 107.5])
    console = a_console()
    view = LiveView(console, now=lambda: next(times))
    view.apply(BudgetUsed(usage=usage(), attempts=1, wall_s=20.0, share=0.5))

    console.print(view.picture())

    assert "27.5 s" in written(console)


@pytest.mark.parametrize(
    ("wanted", "room", "given"),
    [
        ([5, 5], 40, [6, 6]),
        ([5, 5], 9, [5, 4]),
        ([1, 9], 5, [2, 3]),
        ([9, 9], 5, [5, 0]),
        ([9], 2, [0]),
        ([], 9, []),
    ],
)
def test_lines_are_shared_out_fairly(wanted: list[int], room: int, given: list[int]) -> None:
    assert shared_out(wanted, room) == given
