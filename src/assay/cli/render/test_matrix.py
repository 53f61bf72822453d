"""The test matrix as a picture: a row per test, a column per attempt, a mark per result.

Also the marks and the capabilities of a terminal that other views need.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from assay.cli.render.text import count, one_line, shortened
from assay.contracts.verdict import TestMatrix, TestMatrixRow, TestStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The mark of a test result: a square with colors, a symbol without."""

    style: str
    symbol: str
    ascii: str


MARKS: Final[dict[TestStatus | None, Mark]] = {
    TestStatus.PASSED: Mark(style="green", symbol="✓", ascii="+"),
    TestStatus.FAILED: Mark(style="red", symbol="✗", ascii="x"),
    TestStatus.ERROR: Mark(style="magenta", symbol="!", ascii="!"),
    TestStatus.SKIPPED: Mark(style="yellow", symbol="–", ascii="-"),  # noqa: RUF001 - longer
    None: Mark(style="dim", symbol="·", ascii="."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalStyle:
    """The capabilities of a terminal."""

    colours: bool
    """Whether the terminal shows colors."""
    ascii_only: bool

    def square(self, status: TestStatus | None) -> Text:
        """Draw a test result as a cell of the test_matrix."""
        if status is None or not self.colours or self.ascii_only:
            return self.symbol(status)
        return Text("■", MARKS[status].style)

    def symbol(self, status: TestStatus | None) -> Text:
        """Draw a test result as a symbol, for readers who cannot tell green from red."""
        mark = MARKS[status]
        return Text(mark.ascii if self.ascii_only else mark.symbol, mark.style)

    def tick(self, *, done: bool | None) -> Text:
        """Draw a tick, a cross, or a ring if the result is still open."""
        if done is None:
            return Text("." if self.ascii_only else "○", "dim")
        return self.symbol(TestStatus.PASSED if done else TestStatus.FAILED)


def look_of(console: Console) -> TerminalStyle:
    """Return the capabilities of a console."""
    return TerminalStyle(
        colours=console.color_system is not None and not console.no_color,
        ascii_only=console.options.ascii_only,
    )


def unwrapped(text: str = "", style: str = "") -> Text:
    """Return a line that is cut at the terminal's width."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


History = tuple[TestStatus | None, ...]
"""The results of one test by attempt; None where it was not reported."""


_WORDS: Final[dict[TestStatus | None, str]] = {
    TestStatus.FAILED: "fail",
    TestStatus.ERROR: "break",
    TestStatus.SKIPPED: "skipped",
}

_NARROWEST_NAME: Final = 12
_FEWEST_ROWS: Final = 2
_FRAME_ROWS: Final = 2
_NAMES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixView:
    """A test_matrix in at most `max_rows` lines; many tests are grouped by their results."""

    test_matrix: TestMatrix
    max_rows: int = 16

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.test_matrix.rows:
            return
        pen = _GridRenderer(
            look=look_of(console),
            cell=len(str(max(row.attempt for row in self.test_matrix.rows))) + 1,
            width=options.max_width,
        )
        columns = self.test_matrix.rows[-pen.most_columns :]
        prefix = _shared_prefix(self.test_matrix.tests)
        yield pen.header(columns, prefix, cut=len(columns) < len(self.test_matrix.rows))
        yield from self._body(columns, pen, len(prefix))
        yield _total(self.test_matrix)

    @property
    def rows(self) -> int:
        """Number of lines it would fill."""
        if not self.test_matrix.rows:
            return 0
        return min(len(self.test_matrix.tests) + _FRAME_ROWS, self.max_rows)

    def _body(
        self, columns: Sequence[TestMatrixRow], pen: "_GridRenderer", prefix: int
    ) -> Iterator[Text]:
        histories: dict[str, History] = {
            test[prefix:]: tuple(row.statuses.get(test) for row in columns)
            for test in self.test_matrix.tests
        }
        room = max(self.max_rows - _FRAME_ROWS, _FEWEST_ROWS)
        if len(histories) <= room:
            yield from (pen.row(history, one_line(test)) for test, history in histories.items())
            return
        groups: dict[History, list[str]] = {}
        for test, history in histories.items():
            groups.setdefault(history, []).append(test)
        ordered = sorted(groups.items(), key=_interest)
        shown = ordered if len(ordered) <= room else ordered[: room - 1]
        yield from (pen.row(history, _together(tests)) for history, tests in shown)
        if left := sum(len(tests) for _, tests in ordered[len(shown) :]):
            yield unwrapped(f"and {count(left, 'test')} with other results", "dim")


@dataclass(frozen=True, slots=True, kw_only=True)
class _GridRenderer:
    """A renderer of the lines of one picture."""

    look: TerminalStyle
    cell: int
    width: int

    @property
    def most_columns(self) -> int:
        return max((self.width - _NARROWEST_NAME - 2) // self.cell, 1)

    def header(self, columns: Sequence[TestMatrixRow], prefix: str, *, cut: bool) -> Text:
        ellipsis = "." if self.look.ascii_only else "…"
        line = unwrapped(f"{ellipsis} " if cut else "  ", "dim")
        for row in columns:
            line.append(f"{row.attempt:<{self.cell}}")
        line.append(one_line(prefix) or "attempt")
        return line

    def row(self, history: History, name: str) -> Text:
        line = unwrapped()
        # The newest result also has a symbol: some readers cannot tell green from red.
        line.append_text(self.look.symbol(history[-1]))
        line.append(" ")
        for status in history:
            line.append_text(self.look.square(status))
            line.append(" " * (self.cell - 1))
        line.append(name, style="" if history[-1] is not TestStatus.PASSED else "dim")
        return line


def _total(test_matrix: TestMatrix) -> Text:
    newest = test_matrix.rows[-1]
    counted = test_matrix.counted
    endings = [newest.statuses.get(test) for test in counted]
    passed = endings.count(TestStatus.PASSED)
    line = unwrapped()
    line.append(f"{passed} of {count(len(endings), test_matrix.noun)} pass", style="bold")
    for status, word in _WORDS.items():
        if number := endings.count(status):
            line.append(f", {number} {word}", style=MARKS[status].style)
    best = max(test_matrix.rows, key=lambda row: len(row.passed))
    if len(best.passed) > passed:
        line.append(f"; the best was {len(best.passed)}, in attempt {best.attempt}")
    return line


def _shared_prefix(tests: Sequence[str]) -> str:
    """Return the file or folder that all tests have in common, to be shown once."""
    first = tests[0].partition("[")[0] if len(tests) > 1 else ""
    places = [first[: mark.end()] for mark in re.finditer("::|/", first)]
    shared = (place for place in reversed(places) if all(test.startswith(place) for test in tests))
    return next(shared, "")


def _interest(group: tuple[History, list[str]]) -> tuple[bool, bool, int]:
    """Sort failing tests first, then tests that once failed, then large groups."""
    history, tests = group
    passes = history[-1] is TestStatus.PASSED
    return passes, passes and set(history) == {TestStatus.PASSED}, -len(tests)


def _together(tests: Sequence[str]) -> str:
    if len(tests) == 1:
        return one_line(tests[0])
    names = ", ".join(one_line(test, 60) for test in tests[:_NAMES])
    more = ", …" if len(tests) > _NAMES else ""
    return shortened(f"{count(len(tests), 'test')}: {names}{more}", 300)
