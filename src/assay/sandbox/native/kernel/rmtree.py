"""Removes a folder with hostile content.

Neither depth nor file modes can prevent it: nested folders are moved up before they are removed, so
no path grows long and nothing recurses. Links are removed, never followed.
"""

import os
import secrets
import stat
from contextlib import suppress
from itertools import count
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str | bytes, *, dir_fd: int | None = None) -> None:
    """Remove a folder and everything below it, as far as permissions allow."""
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(path, dir_fd=dir_fd).st_mode):
            os.chmod(path, 0o700, dir_fd=dir_fd)
    try:
        top = os.open(path, _FOLDER, dir_fd=dir_fd)
    except OSError:
        return
    try:
        _empty(top)
    finally:
        os.close(top)
    with suppress(OSError):
        os.rmdir(path, dir_fd=dir_fd)


def _empty(top: int) -> None:
    # An unpredictable name, so that the content cannot occupy it.
    prefix = f".assay-{secrets.token_hex(8)}"
    numbers = count()
    waiting = os.listdir(top)
    while waiting:
        name = waiting.pop()
        with suppress(OSError):
            if stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
                waiting.extend(_flatten(top, name, prefix, numbers))
                os.rmdir(name, dir_fd=top)
            else:
                os.unlink(name, dir_fd=top)


def _flatten(top: int, name: str, prefix: str, numbers: "count[int]") -> list[str]:
    """Move the subfolders of a folder up beside it, remove the rest, and return the new names."""
    with suppress(OSError):
        os.chmod(name, 0o700, dir_fd=top)
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    moved: list[str] = []
    try:
        for entry in os.listdir(folder):
            with suppress(OSError):
                if not stat.S_ISDIR(os.lstat(entry, dir_fd=folder).st_mode):
                    os.unlink(entry, dir_fd=folder)
                    continue
                os.chmod(entry, 0o700, dir_fd=folder)
                fresh = f"{prefix}-{next(numbers)}"
                os.rename(entry, fresh, src_dir_fd=folder, dst_dir_fd=top)
                moved.append(fresh)
    finally:
        os.close(folder)
    return moved
