"""Formats a cell's exception with the lines of cells and of the user's own files only."""

import os
import sys
import traceback
from typing import Any, Final, cast

_MOST_LINES: Final = 200
_LONGEST_LINE: Final = 2000
_LONGEST_MESSAGE: Final = 10_000
_CELL: Final = "<cell "


def describe(error: BaseException) -> dict[str, Any]:
    """Return name, message and traceback of an exception, even if formatting it raises."""
    try:
        told = traceback.TracebackException.from_exception(error, compact=True)
        _leave_out_others(told, set())
        lines = [line for text in told.format() for line in text.rstrip("\n").split("\n")]
        message = _message_of(error)
    except Exception as failure:  # noqa: BLE001 - reported as one that cannot be shown
        lines, message = [type(error).__name__], f"(cannot be shown: {type(failure).__name__})"
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        left_out = f"  … {len(lines) - _MOST_LINES} lines left out …"
        lines = [*lines[:half], left_out, *lines[-half:]]
    return {
        "name": type(error).__name__[:_LONGEST_LINE],
        "message": message[:_LONGEST_MESSAGE],
        "traceback": [line[:_LONGEST_LINE] for line in lines],
    }


def _message_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return str(error.msg)
    return str(error)


def _leave_out_others(told: traceback.TracebackException, seen: set[int]) -> None:
    if id(told) in seen:
        return
    seen.add(id(told))
    own = [frame for frame in told.stack if _is_own(frame.filename)]
    # Without a frame, there is no heading "most recent call last".
    told.stack = cast("Any", traceback.StackSummary.from_list(own) if own else None)
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            _leave_out_others(other, seen)


def _is_own(filename: str) -> bool:
    """Whether this is a cell, or a file in the workspace, where cells run."""
    if filename.startswith(_CELL):
        return True
    here = os.getcwd()
    path = os.path.join(here, filename)
    installed = path.startswith((f"{sys.prefix}/", f"{sys.base_prefix}/", "<"))
    return path.startswith(f"{here}/") and not installed and os.path.exists(path)
