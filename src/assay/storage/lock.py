"""Lock of a run or a session: one process at a time."""

import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio

from assay.contracts.errors import UsageError

_NAME: Final = "lock"
_TRIES: Final = 10
_BETWEEN_TRIES_S: Final = 0.02


@asynccontextmanager
async def hold(folder: Path, *, what: str = "run") -> AsyncGenerator[None]:
    """Hold the exclusive lock of this folder. The kernel releases it when the process ends.

    Raises:
        UsageError: If another process holds it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder / _NAME, flags, 0o600)
    try:
        await _take(descriptor, f"{what} {folder.name!r}")
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


async def _take(descriptor: int, what: str) -> None:
    # `is_held` takes the lock for a moment, which must not reject another process.
    for _ in range(_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        await anyio.sleep(_BETWEEN_TRIES_S)
    owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    raise UsageError(
        f"another process works on the {what}" + (f": {owner}" if owner else ""),
        hint="wait for it to end, or end it",
    )


def is_held(folder: Path) -> bool:
    """Return whether a process holds the lock of this folder."""
    try:
        descriptor = os.open(folder / _NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
