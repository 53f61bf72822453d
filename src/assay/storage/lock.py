"""Locks: one process at a time uses a run or a session, and one run at a time a workspace.

Two runs that work on one workspace would overwrite each other.
"""

import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio

from assay.contracts.errors import UsageError
from assay.files import make_folder, try_lock

_NAME: Final = "lock"
_TRIES: Final = 10
_BETWEEN_TRIES_S: Final = 0.02
_OWNERS: Final = "workspaces"
_BETWEEN_WORKSPACE_TRIES_S: Final = 0.2
_NAME_CHARS: Final = 24
_LONGEST_OWNER: Final = 200


@asynccontextmanager
async def hold(folder: Path, *, what: str = "run") -> AsyncGenerator[None]:
    """Hold the exclusive lock of this folder. The kernel releases it when the process ends.

    Raises:
        UsageError: If another process holds it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder / _NAME, flags, 0o600)
    try:
        # `is_held` takes the lock for a moment, which must not reject another process.
        for _ in range(_TRIES):
            if try_lock(descriptor):
                break
            await anyio.sleep(_BETWEEN_TRIES_S)
        else:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            raise UsageError(
                f"another process works on the {what} {folder.name!r}"
                + (f": {owner}" if owner else ""),
                hint="wait for it to end, or end it",
            )
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Return whether a process holds the lock of this folder."""
    try:
        descriptor = os.open(folder / _NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _no_name(run: str) -> None:
    del run


@asynccontextmanager
async def hold_workspace(
    workspace: Path | None,
    state_dir: Path,
    *,
    wait: bool = False,
    on_notice: Callable[[str], None] = _no_name,
) -> AsyncGenerator[Callable[[str], None]]:
    """Hold the lock of a folder; yields a function that records the name of the run.

    The kernel releases the lock of a process that dies. A folder on a file system without locks is
    used without one.

    Raises:
        UsageError: If another run works on it, unless `wait` is set.
    """
    descriptor = None
    if workspace is not None:
        with suppress(OSError):
            descriptor = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if descriptor is None or workspace is None:
        yield _no_name
        return
    owner = state_dir / _OWNERS / _digest(workspace)

    def note(run: str) -> None:
        with suppress(OSError):
            make_folder(owner.parent)
            owner.write_text(f"run {run!r} (process {os.getpid()})")

    try:
        if not _is_taken(descriptor):
            busy = _describe_owner(owner, workspace)
            if not wait:
                raise UsageError(
                    f"{busy}, and two runs would overwrite each other's files",
                    hint="add --wait to start when it has ended, or stop it",
                )
            on_notice(f"waiting: {busy}")
            while not _is_taken(descriptor):  # noqa: ASYNC110 - processes share no events
                await anyio.sleep(_BETWEEN_WORKSPACE_TRIES_S)
        yield note
        with suppress(OSError):
            owner.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _digest(workspace: Path) -> str:
    return hashlib.sha256(os.fsencode(workspace.resolve())).hexdigest()[:_NAME_CHARS]


def _is_taken(descriptor: int) -> bool:
    """Try to take the lock; a file system without locks counts as success."""
    try:
        return try_lock(descriptor)
    except OSError:
        return True


def _describe_owner(owner: Path, workspace: Path) -> str:
    name = ""
    with suppress(OSError, UnicodeDecodeError):
        name = owner.read_text()[:_LONGEST_OWNER].strip()
    return f"{name or 'another run'} works on the folder {str(workspace.absolute())!r}"
