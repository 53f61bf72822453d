"""A file of lines that only grows. A crash can cut the last line; one that is cut is dropped."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from assay.storage.secure_files import write_all

_BLOCK: Final = 1 << 16
_ENDS_OF_A_LINE: Final = 2


class JsonlFile:
    """An open file of lines."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        try:
            self.found = whole_lines(path)
            """What was there before."""
            self._size = sum(len(line) + 1 for line in self.found)
            os.truncate(self._descriptor, self._size)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._pending = bytearray()
        self._unsynced = False

    def append(self, line: bytes) -> None:
        """Add a line, soon to be durable. What cannot be written now is held for `flush`."""
        self._pending += line
        with suppress(OSError):
            self.flush()

    def flush(self) -> None:
        """Write what `append` could not, or raise `OSError`."""
        while self._pending:
            written = os.write(self._descriptor, self._pending)
            self._size += written
            self._unsynced = True
            del self._pending[:written]

    def sync(self) -> None:
        """Make what was written durable, or raise `OSError`. May be called in a thread."""
        if not self._unsynced:
            return
        # Lowered first: what is appended meanwhile raises it again.
        self._unsynced = False
        try:
            os.fdatasync(self._descriptor)
        except OSError:
            self._unsynced = True
            raise

    def append_durably(self, line: bytes) -> None:
        """Add a line that is durable when this returns; after an `OSError` it is not there."""
        self._append(line, sync=True)

    def append_at_once(self, line: bytes) -> None:
        """Add a line that a crash of ours does not lose, and that `sync` makes durable."""
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
    """Return the lines of a file without one that was cut off; none if there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    return content.split(b"\n")[:-1]


def last_line(path: Path) -> bytes | None:
    """Return the last line that is whole, without reading the others; None if there is none."""
    try:
        with path.open("rb") as file:
            place = file.seek(0, os.SEEK_END)
            tail = b""
            # A line is between two ends of lines, or between the beginning and one.
            while place and tail.count(b"\n") < _ENDS_OF_A_LINE:
                step = min(place, max(_BLOCK, len(tail)))
                place -= step
                file.seek(place)
                tail = file.read(step) + tail
    except FileNotFoundError:
        return None
    lines = tail.split(b"\n")[:-1]
    return lines[-1] if lines else None
