"""Unified diffs between two trees."""

import difflib
import json
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.workspace import FileChange, Tree, changes_between

_MOST_CHARS: Final = 200_000


def unified_diff(before: Tree, after: Tree, *, max_chars: int = _MOST_CHARS) -> str:
    """Return the differences as a unified diff; binary files are only named."""
    pieces: list[str] = []
    left = max_chars
    for change in changes_between(before, after):
        piece = _one(change, before, after)
        if len(piece) > left:
            name = quoted_name(change.path)
            pieces.append(f"# {name}: {change.kind}; the difference is too long to show\n")
            continue
        pieces.append(piece)
        left -= len(piece)
    return "".join(pieces)


def quoted_name(path: PurePosixPath) -> str:
    """Return a path on one line; quote one with control characters, as git does."""
    name = str(path)
    return name if name.isprintable() and not name.startswith('"') else json.dumps(name)


def _one(change: FileChange, before: Tree, after: Tree) -> str:
    old = "" if change.kind == "added" else before.text(change.path)
    new = "" if change.kind == "deleted" else after.text(change.path)
    if old is None or new is None:
        return f"# {quoted_name(change.path)}: {change.kind}, not text\n"
    name = quoted_name(change.path)
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        fromfile="/dev/null" if change.kind == "added" else f"a/{name}",
        tofile="/dev/null" if change.kind == "deleted" else f"b/{name}",
    )
    # A last line without a newline would run into the next header.
    text = "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
    return text or f"# {name}: {change.kind}, only its mode\n"
