"""Measures the disk usage of a workspace on the host's disk, even if the program hides files.

Depth and file modes hide nothing. An unreadable folder is made readable while it is listed, and a
path longer than the kernel accepts is walked in pieces. Links are counted, never followed.
"""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from assay.sandbox.native.kernel import libc

_PER_NAME: Final = 512
_BLOCK: Final = 512
_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TO_LIST: Final = stat.S_IRUSR | stat.S_IXUSR
_PIECE: Final = 2000
"""The number of characters of a path that are walked in one step."""
_MOST_PIECES: Final = 64
BEYOND_ANY_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """An open folder, and the folders below it that are not visited yet."""

    folder: int
    opened_from: int | None = None
    """The mode to restore on a folder that its owner had made unreadable."""
    waiting: list[str] = field(default_factory=lambda: ["."])

    def close(self) -> None:
        if self.opened_from is not None:
            with suppress(OSError):
                # Unless the program has changed the mode in the meantime.
                if _mode(self.folder) == self.opened_from | _TO_LIST:
                    os.chmod(f"/proc/self/fd/{self.folder}", self.opened_from)
        os.close(self.folder)


def disk_use(box: Path) -> int:
    """Return the size of a folder in bytes; `BEYOND_ANY_LIMIT` if it is too deep to walk."""
    total = 0
    pieces: list[_Piece] = []
    try:
        pieces.append(_hold(os.open(box, os.O_PATH | _FOLDER)))
        while pieces:
            if len(pieces) > _MOST_PIECES:
                return BEYOND_ANY_LIMIT
            if pieces[-1].waiting:
                total += _look_into(pieces, pieces[-1].waiting.pop())
            else:
                pieces.pop().close()
    except FileNotFoundError:
        pass
    except PermissionError:
        # Only the program can have made its workspace unreadable.
        return BEYOND_ANY_LIMIT
    finally:
        for piece in reversed(pieces):
            piece.close()
    return total


def _look_into(pieces: list[_Piece], path: str) -> int:
    """Count the direct entries of a folder and queue its subfolders."""
    here = pieces[-1]
    with suppress(OSError):
        folder = None if len(path) > _PIECE else _open_to_list(here.folder, path)
        if folder is None:
            pieces.append(_hold(_open(here.folder, path, os.O_PATH)))
            return 0
        try:
            return _count(folder, path, here.waiting)
        finally:
            os.close(folder)
    return 0


def _open_to_list(above: int, path: str) -> int | None:
    with suppress(PermissionError):
        return _open(above, path, os.O_RDONLY)
    return None


def _count(folder: int, path: str, waiting: list[str]) -> int:
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                total += _PER_NAME + found.st_blocks * _BLOCK
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(f"{path}/{entry.name}")
    return total


def _open(folder: int, path: str, how: int) -> int:
    return libc.open_beneath(folder, os.fsencode(path), how | _FOLDER)


def _hold(folder: int) -> _Piece:
    """Start a piece at a folder; restore its owner's rights to list it."""
    mode = _mode(folder)
    if mode & _TO_LIST == _TO_LIST:
        return _Piece(folder=folder)
    try:
        # Through the descriptor: a link that has replaced the folder is not followed.
        os.chmod(f"/proc/self/fd/{folder}", mode | _TO_LIST)
    except OSError:
        os.close(folder)
        raise
    return _Piece(folder=folder, opened_from=mode)


def _mode(folder: int) -> int:
    return stat.S_IMODE(os.fstat(folder).st_mode)
