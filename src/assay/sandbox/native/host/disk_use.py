"""Measures what a box on the host's own disk takes up, whatever the program did to hide it.

Neither depth nor modes keep anything out: a folder that cannot be listed is opened for as long as
it is looked into, and a path longer than the kernel takes is walked in pieces. Links are counted,
never followed.
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
"""How many characters of a path are walked at once."""
_MOST_PIECES: Final = 64
BEYOND_ANY_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A folder held open, and the folders below it that are still to be looked into."""

    folder: int
    opened_from: int | None = None
    """The mode to give back to a folder that its owner had closed."""
    waiting: list[str] = field(default_factory=lambda: ["."])

    def close(self) -> None:
        if self.opened_from is not None:
            with suppress(OSError):
                # Unless the program has changed its mind meanwhile.
                if _mode(self.folder) == self.opened_from | _TO_LIST:
                    os.chmod(f"/proc/self/fd/{self.folder}", self.opened_from)
        os.close(self.folder)


def disk_use(box: Path) -> int:
    """What is in a folder, in bytes; beyond any limit where it is too deep to be walked."""
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
        # Only the program can have closed the way to its box.
        return BEYOND_ANY_LIMIT
    finally:
        for piece in reversed(pieces):
            piece.close()
    return total


def _look_into(pieces: list[_Piece], path: str) -> int:
    """Count what is directly in a folder; the folders among it have to wait."""
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
    """Begin a new piece at a folder, giving it back the rights that its owner took from it."""
    mode = _mode(folder)
    if mode & _TO_LIST == _TO_LIST:
        return _Piece(folder=folder)
    try:
        # By way of the descriptor: a link that has taken the folder's place is not followed.
        os.chmod(f"/proc/self/fd/{folder}", mode | _TO_LIST)
    except OSError:
        os.close(folder)
        raise
    return _Piece(folder=folder, opened_from=mode)


def _mode(folder: int) -> int:
    return stat.S_IMODE(os.fstat(folder).st_mode)
