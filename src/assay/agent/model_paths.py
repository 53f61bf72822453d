"""Normalize paths that models write, and explain why a path cannot be used."""

import re
from pathlib import PurePosixPath

from assay.contracts.execution import WORKSPACE

_LONGEST_NAME_BYTES = 255
_LONGEST_PATH_BYTES = 4095
_DRIVE = re.compile(r"^[A-Za-z]:[\\/]")


def tidy_path(written: str) -> PurePosixPath:
    """Return the intended path, without quotes, `./`, `/app/` and backslashes.

    The result may still be unusable; `why_unusable` gives the reason.
    """
    text = written.strip().strip("`'\"*").strip()
    if "\\" in text and "/" not in text and not _DRIVE.match(text):
        text = text.replace("\\", "/")
    path = PurePosixPath(text)
    return path.relative_to(WORKSPACE) if path.is_relative_to(WORKSPACE) else path


def why_unusable(path: PurePosixPath) -> str:
    """Return why no file of the workspace can have this path; empty if one can."""
    text = str(path)
    longest = max((_size(part) for part in path.parts), default=0)
    reasons = (
        (text in {"", "."}, "the path is empty"),
        (
            path.is_absolute() or bool(_DRIVE.match(text)),
            "the path is absolute; write it relative to the workspace root",
        ),
        (".." in path.parts, "the path contains `..`; write it relative to the workspace root"),
        ("\\" in text, "the path contains a backslash; use `/`"),
        (not text.isprintable(), "the path contains characters that cannot be printed"),
        (
            longest > _LONGEST_NAME_BYTES or _size(text) > _LONGEST_PATH_BYTES,
            "the path is too long",
        ),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
