"""Folders and files that nobody else may read, written so that a crash leaves no half of one."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

DRAFT: Final = ".draft-"
"""How the name of a file begins that is not whole yet."""


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; all that are new are for their owner alone."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)


def write_file(path: Path, *contents: bytes) -> None:
    """Put a whole file in place: when this returns, a crash does not lose it."""
    draft = write_draft(path.parent, *contents)
    try:
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_draft(folder: Path, *contents: bytes) -> Path:
    """Write a file that is durable but has no name yet."""
    draft = folder / f"{DRAFT}{secrets.token_hex(8)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for content in contents:
            write_all(descriptor, content)
        os.fsync(descriptor)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return draft


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte, however many calls it takes."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
