"""Long output made short: its beginning, its end, and how much is missing in between."""

import re

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_HEAD_SHARE = 0.4
"""The end says more: it has the error."""


def readable(text: str) -> str:
    """Return what a terminal would show: without colours, and of a progress bar its last state."""
    plain = _ESCAPES.sub("", text).replace("\r\n", "\n")
    if "\r" not in plain:
        return plain
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in plain.split("\n"))


def cut_middle(text: str, *, max_chars: int) -> str:
    """Return head and tail of a text, cut between lines where that is possible."""
    if len(text) <= max_chars:
        return text
    head_chars = int(max_chars * _HEAD_SHARE)
    head = text[:head_chars]
    tail = text[-(max_chars - head_chars) :]
    # A cut between lines reads better, unless it would cost most of the part.
    if "\n" in head[head_chars // 2 :]:
        head = head[: head.rindex("\n") + 1]
    if "\n" in tail[: len(tail) // 2]:
        tail = tail[tail.index("\n") + 1 :]
    left_out = text[len(head) : len(text) - len(tail)]
    lines = left_out.count("\n")
    note = f"[... {lines} lines, {len(left_out)} characters left out ...]"
    return f"{head.rstrip(chr(10))}\n{note}\n{tail}"
