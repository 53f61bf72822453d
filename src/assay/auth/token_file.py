"""A token file that is read again after each change, without a restart."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from assay.contracts.errors import UsageError

Content = TypeVar("Content")

_log = logging.getLogger(__name__)


class Reread(Generic[Content]):
    """Content of a file, checked for changes on every use.

    Raises:
        UsageError: If the file cannot be used at the start.
    """

    def __init__(self, path: Path, read: Callable[[Path], Content], *, nothing: Content) -> None:
        self._path = path
        self._read = read
        self._nothing = nothing
        self._mark = _mark(path)
        self._content = read(path)

    def current(self) -> Content:
        """Return the content; empty while the file is unusable, so that no client gets in."""
        # Read before the content, so that the next call detects a write in between.
        mark = _mark(self._path)
        if mark != self._mark:
            self._mark = mark
            try:
                self._content = self._read(self._path)
            except UsageError as error:
                _log.warning("no token is accepted: %s", error)
                self._content = self._nothing
        return self._content


def _mark(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
