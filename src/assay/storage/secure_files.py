"""Private folders and files, written so that a crash leaves no partial file."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

DRAFT: Final = ".draft-"
"""The prefix of incomplete files."""


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; new ones are accessible to their owner only."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)


def write_file(path: Path, *contents: bytes) -> None:
    """Write a whole file atomically; when this returns, it survives a crash."""
    draft = write_draft(path.parent, *contents)
    try:
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_draft(folder: Path, *contents: bytes) -> Path:
    """Write a durable file under a temporary name."""
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
    """Write every byte, in as many calls as needed."""
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
