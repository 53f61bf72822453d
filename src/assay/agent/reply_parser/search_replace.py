"""Parse SEARCH/REPLACE hunks and unified diffs into pairs of texts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from assay.agent.reply_parser.addresses import usable

_OPEN = re.compile(
    r"^\s{0,3}(?:<{5,9}|-{5,9})\s*(?:SEARCH|ORIGINAL|HEAD|BEFORE|OLD)\b.*$", re.IGNORECASE
)
_DIVIDE = re.compile(r"^\s{0,3}={5,9}\s*$")
_CLOSE = re.compile(
    r"^\s{0,3}(?:>{5,9}\s*(?:(?:REPLACE|UPDATED|AFTER|NEW)\b.*)?|\+{5,9}\s*REPLACE\b.*)$",
    re.IGNORECASE,
)
_DIFF_FILE = re.compile(r"^\+\+\+\s+(?:b/)?(?P<path>\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """One replacement. `path` is set only if the hunk names its file."""

    search: str
    replace: str
    path: PurePosixPath | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunks:
    """The hunks of a block."""

    hunks: tuple[Hunk, ...] = ()
    problems: tuple[str, ...] = ()


def opens_hunk(line: str) -> bool:
    """Whether a hunk starts at this line."""
    return bool(_OPEN.match(line))


def closes_hunk(line: str) -> bool:
    """Whether a hunk ends at this line."""
    return bool(_CLOSE.match(line))


def is_diff(lines: Sequence[str]) -> bool:
    """Whether these lines are a unified diff."""
    headed = any(line.startswith("--- ") for line in lines) and any(
        line.startswith("+++ ") for line in lines
    )
    return any(line.startswith("@@") for line in lines) and (
        headed or any(line[:1] in {"+", "-"} for line in lines)
    )


def read_hunks(lines: Sequence[str], *, complete: bool = True) -> Hunks:
    """Read all hunks of a block; `complete` is false for a block without an end."""
    hunks: list[Hunk] = []
    problems: list[str] = []
    at = 0
    while at < len(lines):
        if not opens_hunk(lines[at]):
            at += 1
            continue
        end = at + 1
        while end < len(lines) and not (opens_hunk(lines[end]) or closes_hunk(lines[end])):
            end += 1
        if end == len(lines) and not complete:
            problems.append("the last SEARCH/REPLACE hunk is cut off, and was left out")
            break
        body = lines[at + 1 : end]
        hunk = _split(body)
        if hunk is None:
            problems.append(
                "a SEARCH/REPLACE hunk needs exactly one line ======= between the lines to search"
                f" for and the lines to put there; this one has {_dividers(body)}"
            )
        else:
            hunks.append(hunk)
        at = end if end < len(lines) and opens_hunk(lines[end]) else end + 1
    return Hunks(hunks=tuple(hunks), problems=tuple(problems))


def _dividers(body: Sequence[str]) -> int:
    return sum(bool(_DIVIDE.match(line)) for line in body)


def _split(body: Sequence[str]) -> Hunk | None:
    dividers = [at for at, line in enumerate(body) if _DIVIDE.match(line)]
    if len(dividers) % 2 == 0:
        return None
    # Content may contain such lines, such as underlined headings: equally many on both sides.
    middle = dividers[len(dividers) // 2]
    return Hunk(search=_text(body[:middle]), replace=_text(body[middle + 1 :]))


def read_diff(lines: Sequence[str]) -> Hunks:
    """Read a unified diff as replacements; its line numbers are ignored."""
    hunks: list[Hunk] = []
    path: PurePosixPath | None = None
    old: list[str] = []
    new: list[str] = []

    def finish() -> None:
        if old != new:
            hunks.append(Hunk(search=_text(old), replace=_text(new), path=path))
        old.clear()
        new.clear()

    inside = False
    for before, line, following in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        # A deleted line that starts with `--` looks like a header, but no `+++` follows it.
        named = _DIFF_FILE.match(line) if before.startswith("--- ") else None
        heads = line.startswith("--- ") and following.startswith("+++ ")
        if named or heads or line.startswith(("@@", "diff ", "index ")):
            finish()
            inside = line.startswith("@@")
            path = usable(named["path"]) if named else path
        elif inside and not line.startswith("\\"):
            if line[:1] != "+":
                old.append(line[1:])
            if line[:1] != "-":
                new.append(line[1:])
    finish()
    problems = () if hunks else ("the diff changes nothing",)
    return Hunks(hunks=tuple(hunks), problems=problems)


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
