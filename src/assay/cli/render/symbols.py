"""Capabilities of a terminal, and the marks of test results."""

from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.text import Text

from assay.contracts.verdict import TestStatus


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
        """Draw a test result as a cell of the lattice."""
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
