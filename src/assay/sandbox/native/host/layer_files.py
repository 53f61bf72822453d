"""Copies of layers where the kernel mounts none, and the changes of a workspace to its layer.

If the layer is mounted below the workspace, only the folder with the changes is walked. It says
which paths may differ, and nothing more: what is in it results from what hostile programs did, so
each of these paths is looked up in the workspace and in the layer. A copied workspace is walked as
a whole, but a file that has the same inode, size and times as after the copy is not read.
"""

import errno
import os
import stat
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from assay.contracts.errors import WorkspaceError
from assay.contracts.execution import FileInfo, WorkspaceChanges
from assay.sandbox.native.host.files import (
    CHUNK,
    DEEPEST,
    FIND,
    READ,
    describe_entry,
    open_beneath,
    open_folder_if_there,
    workspace_errors,
)
from assay.sandbox.native.kernel import libc

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPAQUE: Final = "user.overlay.opaque"
_NO_SUCH_ATTRIBUTE: Final = frozenset({errno.ENODATA, errno.EOPNOTSUPP})
_NO_FAST_COPY: Final = frozenset({errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
_PAGE: Final = 4096
_ROOM_PER_ENTRY: Final = 16384
"""The room that the kernel counts for one inode of a workspace, see `guest/mounts.py`."""
_RACY_NS: Final = 50_000_000
"""Two changes within this time may leave the same time stamps."""

Stamp = tuple[int, int, int, int, int]
"""Inode, mode, size, and the times of the last changes of content and metadata."""


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def room_of_layer(folder: Path) -> int:
    """Return how much larger a workspace must be to hold a copy of a layer; blocks."""
    total = 0
    waiting = [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                total += _ROOM_PER_ENTRY
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    total += -(-entry.stat(follow_symlinks=False).st_size // _PAGE) * _PAGE
    return total


def copy_layer(folder: Path, workspace: int, *, act_as: int | None) -> Mapping[str, Stamp]:
    """Copy a layer into an empty workspace; return the stamps of files that are safe to trust.

    Raises:
        WorkspaceError: If that fails, for example without room.
    """
    stamps: dict[str, Stamp] = {}
    waiting = [""]
    with workspace_errors(PurePosixPath()):
        while waiting:
            below = waiting.pop()
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    path = f"{below}{entry.name}"
                    mode = entry.stat(follow_symlinks=False).st_mode
                    if stat.S_ISDIR(mode):
                        with libc.file_access_as(act_as):
                            os.mkdir(path, mode & 0o777 | 0o700, dir_fd=workspace)
                        waiting.append(f"{path}/")
                    elif stat.S_ISLNK(mode):
                        target = os.readlink(entry.path)
                        with libc.file_access_as(act_as):
                            os.symlink(target, path, dir_fd=workspace)
                    elif stat.S_ISREG(mode):
                        stamps[path] = _copy_file(entry.path, mode, path, workspace, act_as)
    finished = time.time_ns()
    return {path: found for path, found in stamps.items() if found[4] < finished - _RACY_NS}


def _copy_file(source: str, mode: int, path: str, workspace: int, act_as: int | None) -> Stamp:
    with ExitStack() as opened:
        reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, reading)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with libc.file_access_as(act_as):
            writing = os.open(path, flags, mode & 0o777, dir_fd=workspace)
        opened.callback(os.close, writing)
        _copy_content(reading, writing)
        with libc.file_access_as(act_as):
            # The umask must not change what programs see.
            os.fchmod(writing, mode & 0o777)
        return _stamp(os.fstat(writing))


def _copy_content(reading: int, writing: int) -> None:
    try:
        while os.copy_file_range(reading, writing, CHUNK):
            pass
    except OSError as error:
        if error.errno not in _NO_FAST_COPY:
            raise
    while piece := os.read(reading, CHUNK):
        view = memoryview(piece)
        while view:
            view = view[os.write(writing, view) :]


@dataclass(frozen=True, slots=True)
class _Folders:
    """One folder of the workspace, of its layer, and of the mount that holds the changes."""

    workspace: int
    layer: int | None
    changed: int | None
    hidden: bool
    """Whether a program has replaced the folder, so that nothing of the layer shows in it."""


class ChangeFinder:
    """Finds the changes of one workspace to its layer. Every method blocks."""

    def __init__(
        self,
        workspace: int,
        layer: Path,
        *,
        act_as: int | None,
        upper: int | None = None,
        stamps: Mapping[str, Stamp] | None = None,
    ) -> None:
        self._workspace = workspace
        self._layer = layer
        self._act_as = act_as
        self._upper = upper
        """The folder with the changes; None if the layer was copied."""
        self._stamps = stamps or {}
        self._written: list[FileInfo] = []
        self._removed: list[PurePosixPath] = []

    def find(self) -> WorkspaceChanges:
        """Return the changes.

        Raises:
            WorkspaceError: If a folder cannot be read, or lies too deep.
        """
        self._written, self._removed = [], []
        with workspace_errors(PurePosixPath()), ExitStack() as opened:
            layer = os.open(self._layer, _FOLDER)
            opened.callback(os.close, layer)
            top = _Folders(self._workspace, layer, self._upper, hidden=False)
            self._compare(PurePosixPath(), top, 0)
        return WorkspaceChanges(
            written=tuple(sorted(self._written, key=lambda entry: entry.path)),
            removed=tuple(sorted(self._removed)),
        )

    def _compare(self, path: PurePosixPath, here: _Folders, depth: int) -> None:
        if depth > DEEPEST:
            raise WorkspaceError(f"{str(path)[:80]!r} is nested too deeply")
        names, hidden = self._names(here)
        for name in names:
            with libc.file_access_as(self._act_as):
                now = _lstat(here.workspace, name)
            before = None if here.layer is None else _lstat(here.layer, name)
            if now is None:
                if before is not None:
                    self._removed.append(path / name)
                continue
            is_folder = stat.S_ISDIR(now.st_mode)
            was_folder = before is not None and stat.S_ISDIR(before.st_mode)
            if not (is_folder and was_folder) and self._differs(path / name, here, now, before):
                self._written.append(describe_entry(path / name, now))
            if is_folder:
                self._descend(path / name, here, depth, hidden=hidden, in_layer=was_folder)

    def _names(self, here: _Folders) -> tuple[list[str], bool]:
        """Return the names that may differ, and whether the layer is hidden here."""
        hidden = here.hidden
        with libc.file_access_as(self._act_as):
            names = set(_list(here.workspace if here.changed is None else here.changed))
            if here.changed is not None and not hidden:
                hidden = _is_opaque(here.changed)
        if here.layer is not None and (hidden or here.changed is None):
            names.update(_list(here.layer))
        return sorted(names), hidden

    def _descend(
        self, path: PurePosixPath, here: _Folders, depth: int, *, hidden: bool, in_layer: bool
    ) -> None:
        name = os.fsencode(path.name)
        with ExitStack() as opened:
            layer = changed = None
            with libc.file_access_as(self._act_as):
                workspace = open_folder_if_there(here.workspace, name)
                if workspace is None:
                    return
                opened.callback(os.close, workspace)
                if here.changed is not None:
                    changed = open_folder_if_there(here.changed, name)
                    if changed is None:
                        return
                    opened.callback(os.close, changed)
            if in_layer and here.layer is not None:
                layer = os.open(name, FIND | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here.layer)
                opened.callback(os.close, layer)
            self._compare(path, _Folders(workspace, layer, changed, hidden), depth + 1)

    def _differs(
        self,
        path: PurePosixPath,
        here: _Folders,
        now: os.stat_result,
        before: os.stat_result | None,
    ) -> bool:
        if before is None or here.layer is None:
            return True
        if stat.S_IFMT(now.st_mode) != stat.S_IFMT(before.st_mode):
            return True
        if stat.S_ISLNK(now.st_mode):
            return self._points_elsewhere(path.name, here.workspace, here.layer)
        if not stat.S_ISREG(now.st_mode) or now.st_size != before.st_size:
            return True
        if (now.st_mode ^ before.st_mode) & stat.S_IXUSR:
            return True
        if self._stamps.get(str(path)) == _stamp(now):
            return False
        return self._has_other_content(os.fsencode(path.name), here.workspace, here.layer)

    def _points_elsewhere(self, name: str, workspace: int, layer: int) -> bool:
        before = os.readlink(name, dir_fd=layer)
        with suppress(OSError), libc.file_access_as(self._act_as):
            return os.readlink(name, dir_fd=workspace) != before
        return True

    def _has_other_content(self, name: bytes, workspace: int, layer: int) -> bool:
        with ExitStack() as opened:
            try:
                with libc.file_access_as(self._act_as):
                    ours = open_beneath(workspace, name, READ)
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE}:
                    raise
                # Replaced meanwhile, or made unreadable.
                return True
            opened.callback(os.close, ours)
            if not stat.S_ISREG(os.fstat(ours).st_mode):
                return True
            theirs = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=layer)
            opened.callback(os.close, theirs)
            while piece := os.read(theirs, CHUNK):
                if _read_fully(ours, len(piece)) != piece:
                    return True
            return bool(os.read(ours, 1))


def _list(folder: int) -> list[str]:
    """Return the names in a folder; none if it is gone."""
    try:
        readable = open_beneath(folder, b".", os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return []
    try:
        return os.listdir(readable)
    finally:
        os.close(readable)


def _is_opaque(folder: int) -> bool:
    """Whether a folder with changes hides the folder of the layer; in doubt, it does."""
    try:
        readable = open_beneath(folder, b".", os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return True
    try:
        os.getxattr(readable, _OPAQUE)
    except OSError as error:
        return error.errno not in _NO_SUCH_ATTRIBUTE
    finally:
        os.close(readable)
    return True


def _lstat(folder: int, name: str) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return os.lstat(name, dir_fd=folder)
    return None


def _read_fully(descriptor: int, size: int) -> bytes:
    pieces: list[bytes] = []
    while size and (piece := os.read(descriptor, size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
