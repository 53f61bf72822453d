"""Excerpts of the code in a model's reply, with syntax highlighting."""

from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.syntax import Syntax

from assay.cli.render.test_matrix import unwrapped
from assay.cli.render.text import plain, visible

_FENCES: Final = ("```", "~~~")
_LOOKED_AT: Final = 60
"""Lines to highlight, so that a string that begins above the shown ones is recognized."""
_WIDEST: Final = 400
THEME: Final = "ansi_dark"
"""The terminal's own colors, which suit any background."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """The end of code, or of prose if there is no code."""

    lines: tuple[str, ...]
    language: str = ""
    """A language or a file name; empty for prose."""
    first: int = 1
    """Number of the first of these lines."""

    def draw(self, rows: int, *, colours: bool) -> RenderableType:
        """Draw the last lines, highlighted and numbered if they are code."""
        if not self.language:
            return Group(*(unwrapped(line) for line in self.lines[-rows:]))
        before = len(self.lines) - min(rows, len(self.lines))
        if not colours:
            shown = enumerate(self.lines[before:], start=self.first + before)
            return Group(*(unwrapped(f"{number:>4} {line}") for number, line in shown))
        return Syntax(
            "\n".join(self.lines),
            _lexer(self.language),
            theme=THEME,
            background_color="default",
            line_numbers=self.language != "diff",
            start_line=self.first,
            line_range=(before + 1, len(self.lines)),
        )


def excerpt_of_reply(text: str, *, whole: bool) -> Excerpt:
    """Return what to show of a reply: the code being written, else the prose.

    A complete reply shows its last code, since Assay runs that now.
    """
    opened: int | None = None
    language = ""
    block: Excerpt | None = None
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not line.lstrip().startswith(_FENCES):
            continue
        if opened is None:
            opened, language = number + 1, line.strip().strip("`~ ") or "text"
        else:
            block = _code(lines[opened:number], language)
            opened = None
    if opened is not None:
        return _code(lines[opened:], language)
    if block is not None and whole:
        return block
    return Excerpt(lines=_tail(plain(text.strip("\n")).split("\n"))) if text.strip() else NOTHING


def excerpt_of_diff(diff: str) -> Excerpt:
    """Return what to show of a change."""
    return _code(diff.rstrip("\n").split("\n")[:_LOOKED_AT], "diff")


NOTHING: Final = Excerpt(lines=())


def _code(lines: list[str], language: str) -> Excerpt:
    kept = _tail(lines)
    return Excerpt(
        lines=tuple(visible(line) for line in kept),
        language=language,
        first=len(lines) - len(kept) + 1,
    )


def _tail(lines: list[str]) -> tuple[str, ...]:
    return tuple(line[:_WIDEST] for line in lines[-_LOOKED_AT:])


def _lexer(language: str) -> str:
    """Return a lexer name for Pygments, which draws unknown ones without colors."""
    word = language.rsplit(maxsplit=1)[-1].rpartition(":")[2]
    return Syntax.guess_lexer(word) if "." in word else word.lower()
