"""Files of a workspace that a hostile program also uses: reads, writes, and measures disk usage.

The kernel resolves every path beneath one directory descriptor and passes no symlink or mount
point. The thread acts as the sandbox's own user. Depth, file modes and long paths hide nothing from
the measurement. Standard library only, because it also runs in virtual machines.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from assay.contracts.errors import (
    FileTooLargeError,
    NotARegularFileError,
    PathOutsideWorkspaceError,
    UsageError,
    WorkspaceError,
    WorkspaceFileNotFoundError,
    WorkspaceFullError,
)
from assay.contracts.execution import FileInfo
from assay.sandbox.native.kernel import libc
from assay.sandbox.native.kernel.rmtree import remove_tree

CHUNK: Final = 1 << 20
DEEPEST: Final = 200
_RETRIES: Final = 32
FIND: Final = os.O_PATH | os.O_DIRECTORY
READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_ERRORS: Final[dict[int, Callable[[str], WorkspaceError]]] = {
    errno.ELOOP: PathOutsideWorkspaceError,
    errno.EXDEV: PathOutsideWorkspaceError,
    errno.ENOENT: WorkspaceFileNotFoundError,
    errno.ENOTDIR: NotARegularFileError,
    errno.EISDIR: NotARegularFileError,
    errno.EEXIST: NotARegularFileError,
    errno.ENXIO: NotARegularFileError,
    errno.ENOSPC: WorkspaceFullError,
    errno.EDQUOT: WorkspaceFullError,
}
_MEANINGS: Final = {
    errno.ELOOP: "a symlink is in the way, and links are never followed",
    errno.EXDEV: "it leads out of the workspace",
    errno.EEXIST: "something that is not a file is in the way",
    errno.ENXIO: "it is not a regular file",
}


class WorkspaceFiles:
    """The files below one directory descriptor. Every method blocks: call it from a thread."""

    def __init__(
        self, directory: int, *, act_as: int | None, room: Callable[[], int | None]
    ) -> None:
        self._directory = directory
        self._act_as = act_as
        self._room = room
        """Bytes left where the file system does not enforce the limit; None where it does."""

    def write(self, path: PurePosixPath, content: bytes, *, executable: bool) -> None:
        parts = _parts(path, root=NotARegularFileError)
        room = self._room()
        if room is not None and len(content) > room:
            raise WorkspaceFullError(f"{str(path)!r}: no space left in the workspace")
        with self._operation(path), self._folder(parts[:-1], create=True) as folder:
            _replace_file(folder, parts[-1], content, 0o755 if executable else 0o644)

    def read(self, path: PurePosixPath, *, max_bytes: int) -> bytes:
        parts = _parts(path, root=NotARegularFileError)
        with self._operation(path), self._folder(parts[:-1]) as folder:
            descriptor = open_beneath(folder, parts[-1], READ)
            try:
                return _read_regular(path, descriptor, max_bytes)
            finally:
                os.close(descriptor)

    def list_below(self, path: PurePosixPath) -> tuple[FileInfo, ...]:
        parts = _parts(path)
        with self._operation(path), self._folder(parts) as folder:
            return tuple(sorted(_walk(folder, path), key=lambda entry: entry.path))

    def make_directory(self, path: PurePosixPath) -> None:
        with self._operation(path), self._folder(_parts(path), create=True):
            pass

    def remove(self, path: PurePosixPath) -> None:
        parts = _parts(path, root=PathOutsideWorkspaceError)
        with self._operation(path), self._folder(parts[:-1]) as folder:
            found = os.lstat(parts[-1], dir_fd=folder)
            if stat.S_ISDIR(found.st_mode):
                remove_tree(parts[-1], dir_fd=folder)
                if _exists(folder, parts[-1]):
                    raise OSError(errno.EBUSY, "something in it cannot be removed")
            else:
                os.unlink(parts[-1], dir_fd=folder)

    @contextmanager
    def _operation(self, path: PurePosixPath) -> Generator[None]:
        """Act as the sandbox's user, and translate errors into those of the contract."""
        with workspace_errors(path), libc.file_access_as(self._act_as):
            yield

    @contextmanager
    def _folder(self, parts: list[bytes], *, create: bool = False) -> Generator[int]:
        current = os.open(".", FIND | os.O_CLOEXEC, dir_fd=self._directory)
        try:
            for part in parts:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=current)
                following = open_beneath(current, part, FIND)
                os.close(current)
                current = following
            yield current
        finally:
            os.close(current)


@contextmanager
def workspace_errors(path: PurePosixPath) -> Generator[None]:
    """Translate errors of the kernel into those of the contract."""
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        meaning = _MEANINGS.get(code) or os.strerror(code).lower()
        raise _ERRORS.get(code, WorkspaceError)(f"{str(path)!r}: {meaning}") from error


def _parts(path: PurePosixPath, *, root: type[WorkspaceError] | None = None) -> list[bytes]:
    """Split a path; `root` is the error for the workspace folder itself, if it is not allowed."""
    if not path.parts and root is not None:
        raise root("this is the workspace itself", hint="name something in it")
    if path.is_absolute() or ".." in path.parts:
        raise PathOutsideWorkspaceError(
            f"{str(path)!r} is not a path inside the workspace",
            hint="give a path relative to the workspace root, without `..`",
        )
    if any("\0" in part for part in path.parts):
        raise UsageError(f"{str(path)!r} contains a NUL character")
    try:
        return [os.fsencode(part) for part in path.parts]
    except UnicodeEncodeError as error:
        raise UsageError(f"{str(path)!r} cannot be the name of a file") from error


def _exists(folder: int, name: bytes) -> bool:
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def open_beneath(folder: int, name: bytes, flags: int, mode: int = 0) -> int:
    """Open an entry of a folder, but no symlink and nothing outside of the folder."""
    for _ in range(_RETRIES):
        try:
            return libc.open_beneath(folder, name, flags, mode)
        except BlockingIOError:
            # A rename happened during the walk: the kernel cannot tell whether the path stays
            # beneath.
            continue
    raise OSError(errno.EXDEV, "the path keeps changing")


def _replace_file(folder: int, name: bytes, content: bytes, mode: int) -> None:
    try:
        existing = os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        existing = stat.S_IFREG
    if stat.S_ISLNK(existing):
        raise OSError(errno.ELOOP, "symlink")
    if not stat.S_ISREG(existing):
        raise OSError(errno.EEXIST, "not a file")
    temporary = f".assay-{secrets.token_hex(8)}".encode()
    descriptor = open_beneath(folder, temporary, _CREATE, mode)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _read_regular(path: PurePosixPath, descriptor: int, max_bytes: int) -> bytes:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.ENXIO, "not a regular file")
    pieces: list[bytes] = []
    size = found.st_size
    left = max_bytes + 1
    while size <= max_bytes and left > 0 and (piece := os.read(descriptor, min(left, CHUNK))):
        pieces.append(piece)
        left -= len(piece)
    if size > max_bytes or left <= 0:
        raise FileTooLargeError(
            f"{str(path)!r} holds more than {max_bytes} bytes",
            size_bytes=max(size, max_bytes + 1),
            max_bytes=max_bytes,
        )
    return b"".join(pieces)


def _walk(folder: int, path: PurePosixPath, depth: int = 0) -> Iterator[FileInfo]:
    if depth > DEEPEST:
        raise WorkspaceError(f"{str(path)[:80]!r} is nested too deeply")
    readable = open_beneath(folder, b".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(readable) as entries:
            found = [(entry.name, details) for entry in entries if (details := _stat_of(entry))]
        for name, details in found:
            entry_path = path / name
            yield describe_entry(entry_path, details)
            if stat.S_ISDIR(details.st_mode):
                below = open_folder_if_there(readable, os.fsencode(name))
                if below is None:
                    continue
                try:
                    with suppress(FileNotFoundError):
                        yield from _walk(below, entry_path, depth + 1)
                finally:
                    os.close(below)
    finally:
        os.close(readable)


_REPLACED: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""A program has removed or replaced a folder since it was listed."""


def _stat_of(entry: os.DirEntry[str]) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return entry.stat(follow_symlinks=False)
    return None


def open_folder_if_there(folder: int, name: bytes) -> int | None:
    """Open a folder in a folder; None if a program has removed or replaced it meanwhile."""
    try:
        return open_beneath(folder, name, FIND)
    except OSError as error:
        if error.errno not in _REPLACED:
            raise
    return None


def describe_entry(path: PurePosixPath, details: os.stat_result) -> FileInfo:
    kind: Literal["file", "directory", "symlink", "other"] = "other"
    if stat.S_ISREG(details.st_mode):
        kind = "file"
    elif stat.S_ISDIR(details.st_mode):
        kind = "directory"
    elif stat.S_ISLNK(details.st_mode):
        kind = "symlink"
    return FileInfo(
        path=path,
        kind=kind,
        size_bytes=details.st_size,
        executable=kind == "file" and bool(details.st_mode & stat.S_IXUSR),
    )


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
            pieces.append(_hold(_open_folder(here.folder, path, os.O_PATH)))
            return 0
        try:
            return _count(folder, path, here.waiting)
        finally:
            os.close(folder)
    return 0


def _open_to_list(above: int, path: str) -> int | None:
    with suppress(PermissionError):
        return _open_folder(above, path, os.O_RDONLY)
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


def _open_folder(folder: int, path: str, how: int) -> int:
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
