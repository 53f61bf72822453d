"""The text of a goal: from the command line, from a file, or from stdin."""

import sys
from pathlib import Path
from typing import Final

from assay.contracts.errors import UsageError

_STDIN: Final = "-"
_FILE: Final = "@"


def read_goal(word: str) -> str:
    """Return the goal that an argument stands for.

    Raises:
        UsageError: If the file or stdin cannot be read, is empty, or is not text.
    """
    if word == _STDIN:
        return _text(sys.stdin.buffer.read(), "stdin")
    if not word.startswith(_FILE):
        return word
    name = word.removeprefix(_FILE)
    try:
        content = Path(name).expanduser().read_bytes()
    except (OSError, RuntimeError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(
            f"the goal cannot be read from {name!r}: {reason}",
            hint="check the path; a goal that itself starts with @ needs a space before it",
        ) from error
    return _text(content, repr(name))


def _text(content: bytes, source: str) -> str:
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"the goal in {source} is not text", hint="give it as UTF-8 text")
    if not text:
        raise UsageError(f"the goal in {source} is empty", hint="describe the task")
    return text
