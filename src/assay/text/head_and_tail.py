"""Truncation of long output: its beginning, its end, and the size of the omitted part."""

import re

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_HEAD_SHARE = 0.4
"""Share of the head. The end gets more, because it has the error."""


def readable(text: str) -> str:
    """Return what a terminal would show: no colors, and the last state of a progress bar."""
    plain = _ESCAPES.sub("", text).replace("\r\n", "\n")
    if "\r" not in plain:
        return plain
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in plain.split("\n"))


def cut_middle(text: str, *, max_chars: int) -> str:
    """Return head and tail of a text, cut between lines if possible."""
    if len(text) <= max_chars:
        return text
    head_chars = int(max_chars * _HEAD_SHARE)
    head = text[:head_chars]
    tail = text[-(max_chars - head_chars) :]
    # A cut between lines reads better, unless it would lose most of the part.
    if "\n" in head[head_chars // 2 :]:
        head = head[: head.rindex("\n") + 1]
    if "\n" in tail[: len(tail) // 2]:
        tail = tail[tail.index("\n") + 1 :]
    left_out = text[len(head) : len(text) - len(tail)]
    lines = left_out.count("\n")
    note = f"[... {lines} lines, {len(left_out)} characters left out ...]"
    return f"{head.rstrip(chr(10))}\n{note}\n{tail}"
