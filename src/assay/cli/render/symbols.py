"""What a terminal can show, and the marks that are told apart by it."""

from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.text import Text

from assay.contracts.verdict import TestStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How an ending looks: a square where there are colours, a symbol where there are none."""

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
    """What the terminal can show."""

    colours: bool
    """A difference in colour alone would be seen."""
    ascii_only: bool

    def square(self, status: TestStatus | None) -> Text:
        """Draw how a test ended, as part of a picture."""
        if status is None or not self.colours or self.ascii_only:
            return self.symbol(status)
        return Text("■", MARKS[status].style)

    def symbol(self, status: TestStatus | None) -> Text:
        """Draw how a test ended, for those who do not tell green from red."""
        mark = MARKS[status]
        return Text(mark.ascii if self.ascii_only else mark.symbol, mark.style)

    def tick(self, *, done: bool | None) -> Text:
        """Draw a tick, a cross, or a ring for what is still open."""
        if done is None:
            return Text("." if self.ascii_only else "○", "dim")
        return self.symbol(TestStatus.PASSED if done else TestStatus.FAILED)


def look_of(console: Console) -> TerminalStyle:
    """Ask a console what it can show."""
    return TerminalStyle(
        colours=console.color_system is not None and not console.no_color,
        ascii_only=console.options.ascii_only,
    )


def unwrapped(text: str = "", style: str = "") -> Text:
    """Return a line that is cut where the terminal ends."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")
