"""Formatting of text: truncated and normalized program output, and numbers with nouns.

Each step of normalization is a pure function of the text. Timings, addresses and temporary paths
are replaced only if their context identifies them: numbers in assertions must not change.
"""

import re
from typing import Final

_ANSI: Final = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles and hyperlinks
    r"|[\x1b\x9b][\[()#;?]*[0-9;:]*[ -/]*[@-~]"  # colors and cursor movements
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LARGEST_BLOCK: Final = 6
"""Maximum number of lines that repeat as a group: the frames of a mutual recursion, for example."""
_REPEATS_WORTH_FOLDING: Final = 3
_NOTE: Final = "[… {lines} lines, {chars} characters left out …]"
_SMALLEST: Final = 200
_HEAD_SHARE: Final = 0.4
"""Share of the head. The end says more: totals, and the final error."""

_TIMINGS: Final = tuple(
    (re.compile(pattern, re.MULTILINE), replacement)
    for pattern, replacement in (
        (r"\b(in )\d+(?:\.\d+)?(?:ms|s)(?= =|$| \(\d)", r"\1…s"),  # pytest, unittest, libtest
        (r"(?<=; finished in )\d+(?:\.\d+)?s", "…s"),
        (r"^(\s*--- [A-Z]+: .*\()\d+(?:\.\d+)?s\)$", r"\1…s)"),  # go
        (r"^((?:ok|FAIL)\s+\S+\s+)\d+(?:\.\d+)?s$", r"\1…s"),
        (r"((?:#\s+|^\s*)duration_ms:? )\d+(?:\.\d+)?$", r"\1…"),  # node, TAP
        (r"(\()\d+(?:\.\d+)?( m?s\)$)", r"\1…\2"),  # jest
        (r"^(Time: +)\d+(?:\.\d+)?( m?s)\b.*$", r"\1…\2"),
        (r"(\s)\d+\.\d+( sec$)", r"\1…\2"),  # ctest
        (r"^(Total Test time \(real\) = +)\d+\.\d+", r"\1…"),
        (r"(?<=\s)(time|timestamp)=\"[^\"\n]*\"", r'\1="…"'),  # JUnit XML
    )
)
_TEMPORARY: Final = re.compile(
    r"/(?:var/)?tmp/(?:pytest-of-[\w.-]+/pytest-\d+|[\w.-]*(?:tmp|go-build)[\w.-]*)"
)
_ADDRESS: Final = re.compile(r"\b(at |@ ?)0x[0-9a-fA-F]{6,16}\b")


def trim(text: str, *, max_chars: int = 12_000) -> str:
    """Return the relevant part of an output, in at most this many characters."""
    for step in (
        strip_control_codes,
        fold_repeated_lines,
        normalise_timings,
        normalise_temporary_paths,
        normalise_addresses,
    ):
        text = step(text)
    return cut_middle(text.strip("\n"), max_chars=max_chars)


def strip_control_codes(text: str) -> str:
    """Return the text as a terminal shows it: no colors, and the last state of progress bars."""
    text = _ANSI.sub("", text).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(_last_overwritten(line) for line in text.split("\n"))
    return _CONTROL.sub("", text)


def _last_overwritten(line: str) -> str:
    return next((part for part in reversed(line.split("\r")) if part), "")


def fold_repeated_lines(text: str) -> str:
    """Return the text with repeated lines or groups of lines folded into one, with a count."""
    lines = text.split("\n")
    kept: list[str] = []
    position = 0
    while position < len(lines):
        size, repeats = _repetition(lines, position)
        kept.extend(lines[position : position + size])
        if repeats:
            what = "line above" if size == 1 else f"{size} lines above"
            kept.append(f"[the {what}: {repeats} times more]")
        position += size * (repeats + 1)
    return "\n".join(kept)


def _repetition(lines: list[str], start: int) -> tuple[int, int]:
    """Return the length of the repeated group at this line, and its count; (1, 0) if none."""
    for size in range(1, _LARGEST_BLOCK + 1):
        block = lines[start : start + size]
        # Empty lines are layout; folding them would make the text longer.
        if not any(block):
            continue
        repeats = 0
        following = start + size
        while lines[following : following + size] == block:
            repeats += 1
            following += size
        if repeats >= _REPEATS_WORTH_FOLDING:
            return size, repeats
    return 1, 0


def normalise_timings(text: str) -> str:
    """Return the text without the durations of test runners."""
    for pattern, replacement in _TIMINGS:
        text = pattern.sub(replacement, text)
    return text


def normalise_temporary_paths(text: str) -> str:
    """Return the text with one fixed name for all temporary folders."""
    return _TEMPORARY.sub("/tmp/…", text)  # noqa: S108 - text, not a path


def normalise_addresses(text: str) -> str:
    """Return the text without memory addresses."""
    return _ADDRESS.sub(r"\g<1>0x…", text)


def cut_middle(text: str, *, max_chars: int) -> str:
    """Return the beginning and the end of a long text, cut between lines."""
    if len(text) <= max_chars:
        return text
    if max_chars < _SMALLEST:
        return text[:max_chars]
    room = max_chars - len(_NOTE) - 2 * len(str(len(text)))
    head = text[: int(room * _HEAD_SHARE)]
    tail = text[len(text) - (room - len(head)) :]
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    left_out = text[len(head) : len(text) - len(tail)]
    note = _NOTE.format(lines=left_out.count("\n"), chars=len(left_out))
    return "\n".join((head.removesuffix("\n"), note, tail))


def count(number: int, noun: str) -> str:
    """Return `1 test`, `1,200 tests`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def all_of(number: int, noun: str) -> str:
    """Return `1 test`, `all 1,200 tests`."""
    return count(number, noun) if number == 1 else f"all {count(number, noun)}"
