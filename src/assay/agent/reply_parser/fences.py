"""Fenced blocks in a reply: their start, and the matching end among several candidates."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from assay.agent.edits.syntax import is_readable, syntax_error
from assay.agent.reply_parser.search_replace import closes_hunk, opens_hunk

_OPEN = re.compile(r"^(?P<indent>[ \t]*)(?P<marks>`{3,}|~{3,})(?P<info>.*)$")
_SECTION = re.compile(r"^[#*_`\s]*(?:FILE|EDIT)[*_`]*\s*:\s*\S")
_DONE = re.compile(r"^[\s#*_`>-]*DONE[\s*_`.!]*$")
_MARKDOWN = frozenset({".md", ".markdown", ".mdx"})
_MARKDOWN_INFO = re.compile(r"^(?:markdown|md|mdx)\b", re.IGNORECASE)
_MOST_TRIES = 40
_MOST_INNER_FENCES = 200
_SHORTEST_MARKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The opening line of a fenced block."""

    indent: str
    marks: str
    info: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One fenced block."""

    info: str
    body: tuple[str, ...]
    closed: bool
    after: int
    """The number of the line after it."""

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.body)


def read_opening(line: str) -> Opening | None:
    """Return the opening fence in a line; None if there is none."""
    match = _OPEN.match(line)
    if match is None or (match["marks"][0] == "`" and "`" in match["info"]):
        return None
    return Opening(indent=match["indent"], marks=match["marks"], info=match["info"].strip())


def read_fence(lines: Sequence[str], at: int, *, path: PurePosixPath | None) -> Fence:
    """Read the block that opens at this line; `path` is its file, if known."""
    opening = read_opening(lines[at])
    if opening is None:
        raise ValueError("no fence opens here")
    markdown = _is_markdown(opening, path)
    many = _MOST_INNER_FENCES if markdown else _MOST_TRIES if path and is_readable(path) else 1
    closers, limit = _find_closers(lines, at, opening, many)
    if not closers:
        return _without_closer(lines, at, opening, limit)
    if markdown:
        closer = _close_markdown(lines, at, opening, closers)
    else:
        closer = _close_code(lines, at, (opening, closers), path)
    body = _dedented(lines[at + 1 : closer], opening.indent)
    return Fence(info=opening.info, body=body, closed=True, after=closer + 1)


def _is_markdown(opening: Opening, path: PurePosixPath | None) -> bool:
    if path is None:
        return bool(_MARKDOWN_INFO.match(opening.info))
    return path.suffix.lower() in _MARKDOWN


def _find_closers(
    lines: Sequence[str], at: int, opening: Opening, many: int
) -> tuple[list[int], int]:
    """Return the candidate closing lines, and the line at which the search ended.

    A fence inside a hunk counts only if there is no other. The start of the next file ends the
    block, unless the block has a longer fence, which exists to contain such lines.
    """
    closers: list[int] = []
    inside_hunks: list[int] = []
    inside = False
    for i in range(at + 1, len(lines)):
        if len(opening.marks) == _SHORTEST_MARKS and not inside and _begins_file(lines, i):
            return closers or inside_hunks, i
        inside = (inside or opens_hunk(lines[i])) and not closes_hunk(lines[i])
        if _closes(opening, lines[i]):
            (inside_hunks if inside else closers).append(i)
        if len(closers) >= many:
            return closers, i
    return closers or inside_hunks, len(lines)


def _begins_file(lines: Sequence[str], at: int) -> bool:
    if not _SECTION.match(lines[at]):
        return False
    following = next((line for line in lines[at + 1 : at + 4] if line.strip()), "")
    return read_opening(following) is not None or opens_hunk(following)


def _closes(opening: Opening, line: str) -> bool:
    text = line.strip()
    mark = opening.marks[0]
    indented = len(line) - len(line.lstrip()) > len(opening.indent) + 3
    return len(text) >= len(opening.marks) and not text.strip(mark) and not indented


def _without_closer(lines: Sequence[str], at: int, opening: Opening, limit: int) -> Fence:
    body = _dedented(lines[at + 1 : limit], opening.indent)
    closed = limit < len(lines)
    filled = [i for i, line in enumerate(body) if line.strip()]
    if filled and _DONE.match(body[filled[-1]]) and not closed:
        # The text after it says that the model is finished, so only the closing fence is missing.
        return Fence(
            info=opening.info,
            body=body[: filled[-1]],
            closed=True,
            after=limit - len(body) + filled[-1],
        )
    return Fence(info=opening.info, body=body, closed=closed, after=limit)


def _close_code(
    lines: Sequence[str],
    at: int,
    fence: tuple[Opening, list[int]],
    path: PurePosixPath | None,
) -> int:
    """Return the first closing line with which the file parses; docstrings may contain fences."""
    opening, closers = fence
    if path is not None and len(closers) > 1:
        for closer in closers:
            body = _dedented(lines[at + 1 : closer], opening.indent)
            if not syntax_error(path, "\n".join(body) + "\n"):
                return closer
    return closers[0]


def _close_markdown(lines: Sequence[str], at: int, opening: Opening, closers: Sequence[int]) -> int:
    """Return the end of a Markdown file, which may contain fenced blocks."""
    depth = 0
    bare: list[int] = []
    ends = frozenset(closers)
    for i in range(at + 1, closers[-1] + 1):
        if i in ends:
            if depth == 0:
                bare.append(i)
            depth = max(depth - 1, 0)
        else:
            inner = read_opening(lines[i])
            depth += inner is not None and inner.marks[0] == opening.marks[0]
    if not bare:
        return closers[-1]
    # An odd number: pairs around inner blocks without a language, plus the end.
    return bare[-1] if len(bare) % 2 else bare[0]


def _dedented(lines: Sequence[str], indent: str) -> tuple[str, ...]:
    if not indent:
        return tuple(lines)
    return tuple(line.removeprefix(indent) if line.startswith(indent) else line for line in lines)
