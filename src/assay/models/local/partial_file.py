"""A file on its way: grown from the front by whatever source works, digested as it grows.

All sources give the same bytes, so what one of them began another can finish.
"""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

OnProgress = Callable[[int, int, str], None]
"""Told how many bytes are here, how many there will be, and what is being done."""

_CHUNK_BYTES = 1 << 20


def ignore_progress(done_bytes: int, total_bytes: int, what: str) -> None:
    """Be the listener of someone who only wants the file."""
    del done_bytes, total_bytes, what


class SourceError(Exception):
    """A source does not have the file, or not all of it. Another one may."""


class StorageError(Exception):
    """What was fetched cannot be written here, from whichever source it comes."""


class PartialFile:
    """The first bytes of a file. Blocking: called in worker threads, one call at a time."""

    def __init__(self, path: Path, *, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        try:
            # Unbuffered, so that what has been counted has been written.
            self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        except OSError as error:
            raise _explained(error, path) from error
        self._digest = hashlib.sha256()
        self._length = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def length(self) -> int:
        return self._length

    @property
    def complete(self) -> bool:
        return self._length == self.size_bytes

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def take_stock(self) -> None:
        """Count and digest what an earlier attempt left."""
        self.cut(min(os.fstat(self._file.fileno()).st_size, self.size_bytes))

    def cut(self, length: int) -> None:
        """Keep the first bytes only, and digest them anew.

        Raises:
            StorageError: If it cannot be done.
        """
        self._digest = hashlib.sha256()
        self._length = 0
        try:
            self._file.truncate(length)
            self._file.seek(0)
            while chunk := self._file.read(_CHUNK_BYTES):
                self._digest.update(chunk)
                self._length += len(chunk)
        except OSError as error:
            raise _explained(error, self.path) from error

    def append(self, data: bytes) -> None:
        """Add the next bytes.

        Raises:
            SourceError: If that would be more than the file has.
            StorageError: If they cannot be written.
        """
        if self._length + len(data) > self.size_bytes:
            raise SourceError("it has more bytes than the file")
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise _explained(error, self.path) from error
        self._digest.update(data)
        self._length += len(data)

    def move_to(self, destination: Path) -> None:
        """Give the finished file its name, in one step and for good.

        Raises:
            StorageError: If it cannot be done.
        """
        try:
            os.fsync(self._file.fileno())
            self.path.replace(destination)
            folder = os.open(destination.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise _explained(error, destination) from error


def _explained(error: OSError, path: Path) -> StorageError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageError(f"no space is left in {str(path.parent)!r}")
    return StorageError(f"cannot write {str(path)!r}: {error.strerror or error}")
