"""Private folders and files, written so that a crash leaves no partial file.

In an append-only JSONL file, a crash can truncate the last line; reading drops such a line.
"""

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


_BLOCK: Final = 1 << 16
_ENDS_OF_A_LINE: Final = 2


class JsonlFile:
    """An open JSONL file."""

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
        self._pending = bytearray()
        self._unsynced = False

    def append(self, line: bytes) -> None:
        """Append a line that becomes durable soon; `flush` writes a failed one."""
        self._pending += line
        with suppress(OSError):
            self.flush()

    def flush(self) -> None:
        """Write the lines that `append` could not, or raise `OSError`."""
        while self._pending:
            written = os.write(self._descriptor, self._pending)
            self._size += written
            self._unsynced = True
            del self._pending[:written]

    def sync(self) -> None:
        """Make all written lines durable, or raise `OSError`. Can run in a thread."""
        if not self._unsynced:
            return
        # Cleared first: a concurrent append sets it again.
        self._unsynced = False
        try:
            os.fdatasync(self._descriptor)
        except OSError:
            self._unsynced = True
            raise

    def append_durably(self, line: bytes) -> None:
        """Append a line durably; after an `OSError` the line is not in the file."""
        self._append(line, sync=True)

    def append_at_once(self, line: bytes) -> None:
        """Append a line that survives a crash of this process; `sync` makes it durable."""
        self._append(line, sync=False)
        self._unsynced = True

    def _append(self, line: bytes, *, sync: bool) -> None:
        try:
            write_all(self._descriptor, line)
            if sync:
                os.fdatasync(self._descriptor)
        except OSError:
            os.truncate(self._descriptor, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        os.close(self._descriptor)


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
