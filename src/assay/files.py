"""Private folders and files that survive a crash, append-only JSON lines, and file locks.

A whole file appears under its name only when it is durable. In a file of JSON lines, a crash can
truncate the last line; reading drops such a line, and opening the file removes it.
"""

import fcntl
import json
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

DRAFT: Final = ".draft-"
"""The prefix of incomplete files."""
_BLOCK: Final = 1 << 16
_ENDS_OF_A_LINE: Final = 2


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


def is_private(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user, and other users cannot read or change it."""
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & ~0o600


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take the lock of an open file without waiting; False if another process holds it.

    The kernel releases the lock when the descriptor is closed or the process ends.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class JsonlFile:
    """An open file of JSON lines. Opening it removes an incomplete last line."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        try:
            self.found = whole_lines(path)
            """The lines at opening."""
            self._size = sum(len(line) + 1 for line in self.found)
            os.truncate(self._descriptor, self._size)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._unsynced = False

    def append(self, line: bytes, *, durable: bool = False) -> None:
        """Append a line that survives a crash of this process, or of the machine if `durable`.

        After an `OSError` the line is not in the file.
        """
        try:
            write_all(self._descriptor, line)
            if durable:
                os.fdatasync(self._descriptor)
        except OSError:
            os.truncate(self._descriptor, self._size)
            raise
        self._size += len(line)
        self._unsynced = self._unsynced or not durable

    def sync(self) -> None:
        """Make all lines durable, or raise `OSError`. Can run in a thread beside `append`."""
        if not self._unsynced:
            return
        # Cleared first: a concurrent append sets it again.
        self._unsynced = False
        try:
            os.fdatasync(self._descriptor)
        except OSError:
            self._unsynced = True
            raise

    def close(self) -> None:
        os.close(self._descriptor)


def json_line(fields: Mapping[str, Any]) -> bytes:
    """Return one line of JSON, as readable as possible."""
    try:
        return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        # A lone surrogate from a model or a file name has no UTF-8 encoding; JSON can escape it.
        return json.dumps(fields).encode() + b"\n"


def whole_lines(path: Path) -> list[bytes]:
    """Return the complete lines of a file; none if there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    return content.split(b"\n")[:-1]


def last_line(path: Path) -> bytes | None:
    """Return the last complete line without reading the others; None if there is none."""
    try:
        with path.open("rb") as file:
            place = file.seek(0, os.SEEK_END)
            tail = b""
            # A line starts after a line end or at the start of the file.
            while place and tail.count(b"\n") < _ENDS_OF_A_LINE:
                step = min(place, max(_BLOCK, len(tail)))
                place -= step
                file.seek(place)
                tail = file.read(step) + tail
    except FileNotFoundError:
        return None
    lines = tail.split(b"\n")[:-1]
    return lines[-1] if lines else None
