"""Text types for request fields, with length limits and allowed characters."""

from pathlib import PurePosixPath
from typing import Annotated, Final

from fastapi import Path
from pydantic import AfterValidator, Field, StringConstraints

from assay.contracts.errors import PathOutsideWorkspaceError

_LONGEST_PATH: Final = 1024
_LONGEST_NAME_BYTES: Final = 255


def writable(text: str) -> str:
    """Return text that every store accepts; raise `ValueError` for other text."""
    # A lone surrogate has no UTF-8, and a NUL ends the text in some databases.
    if "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("must not contain NUL or half of a surrogate pair")
    return text


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


Line = Annotated[str, StringConstraints(max_length=200), AfterValidator(writable)]
"""A title or a name."""
Message = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200_000, pattern=r"\S"),
    AfterValidator(writable),
    AfterValidator(_said),
]
ModelName = Annotated[
    str,
    StringConstraints(max_length=200),
    AfterValidator(writable),
    Field(description="`auto`, `local`, `PROVIDER:MODEL`; empty: as the service is set up"),
]
Name = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", examples=["brisk-otter-4f2a"])]
"""Id of a session or a run."""
FilePath = Annotated[str, Path(max_length=_LONGEST_PATH, examples=["data/sales.csv"])]


def workspace_path(text: str) -> PurePosixPath:
    """Return a path in a workspace.

    Raises:
        PathOutsideWorkspaceError: If it leads out of the workspace, or names no file.
    """
    path = PurePosixPath(text)
    wrong = path.is_absolute() or ".." in path.parts or not path.name or text.endswith("/")
    try:
        long = any(len(part.encode()) > _LONGEST_NAME_BYTES for part in path.parts)
    except UnicodeEncodeError:
        wrong, long = True, False
    if wrong or long or "\x00" in text or len(text) > _LONGEST_PATH:
        raise PathOutsideWorkspaceError(f"{text[:100]!r} is not the path of a file in a workspace")
    return path
