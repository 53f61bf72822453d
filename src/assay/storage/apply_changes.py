"""Applies the changes of a run to the user's folder, all of them or none.

Three steps: check everything, write each new content beside its target, then rename. Errors occur
before any file of the user changes.
"""

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Generator, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from assay.contracts.errors import UsageError
from assay.contracts.workspace import FileChange, Tree, TreeFile, changes_between
from assay.files import write_all
from assay.storage.read_workspace import STAGED
from assay.text.diffs import quoted_name

_IN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OF_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NAMED: Final = 8
_ELSEWHERE: Final = "`assay show RUN --files DIR` writes the result to a new folder"
_EXECUTE: Final = 0o111
_NAME_CHARS: Final = 24


def write_changes(
    folder: Path,
    before: Tree,
    after: Tree,
    *,
    replace: bool = False,
    hint: str = _ELSEWHERE,
    owner: str = "",
    modes: Mapping[PurePosixPath, int] | None = None,
) -> tuple[FileChange, ...]:
    """Apply the difference of two trees to a folder; returns the changes.

    A file with the new content already is left unchanged, so that a repeat after a crash works.
    Empty folders are removed. `replace` overwrites files that differ from `before`; links and
    folders are never overwritten. A repeat with the same `owner` removes temporary files that a
    killed process has left. `modes` are the permissions of files that get their old content back.

    Raises:
        UsageError: If a file to change differs from `before`, a link or a folder is in the way, or
            a write fails. Nothing was changed then.
    """
    changes = changes_between(before, after)
    try:
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(
            f"the workspace {str(folder)!r} cannot be used: {error.strerror}", hint=hint
        ) from error
    try:
        writing = _Writing(
            root=root,
            before=before,
            after=after,
            replace=replace,
            hint=hint,
            owner=owner,
            modes=modes or {},
        )
        writing.clean(changes)
        writing.check(changes)
        try:
            with writing.staged(changes) as staged:
                writing.delete(changes)
                writing.place(staged)
        except OSError as error:
            raise UsageError(
                f"cannot write to {str(folder)!r}: {error.strerror}", hint=hint
            ) from error
    finally:
        os.close(root)
    return changes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A regular file on the disk."""

    file: TreeFile
    mode: int
    owner: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    path: PurePosixPath
    folder: PurePosixPath
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    root: int
    before: Tree
    after: Tree
    replace: bool
    hint: str
    owner: str
    modes: Mapping[PurePosixPath, int] = field(default_factory=dict[PurePosixPath, int])

    def clean(self, changes: tuple[FileChange, ...]) -> None:
        """Remove the temporary files of an earlier process with the same owner."""
        if not self.owner:
            return
        for change in changes:
            for parent in () if _leads_out(change.path) else change.path.parents:
                with suppress(OSError), self._folder(parent) as folder:
                    os.unlink(self._staged_name(change.path), dir_fd=folder)

    def _staged_name(self, path: PurePosixPath) -> str:
        if not self.owner:
            return f"{STAGED}{secrets.token_hex(8)}"
        known = hashlib.sha256(os.fsencode(f"{self.owner}\0{path}")).hexdigest()
        return f"{STAGED}{known[:_NAME_CHARS]}"

    def check(self, changes: tuple[FileChange, ...]) -> None:
        """Raise before any write if the folder is not in the expected state."""
        deleted = {change.path for change in changes if change.kind == "deleted"}
        troubles = [
            f"{quoted_name(change.path)}: {trouble}"
            for change in changes
            if (trouble := self._trouble(change, deleted))
        ]
        if not troubles:
            return
        more = f" and {len(troubles) - _NAMED} more" if len(troubles) > _NAMED else ""
        why = "the workspace was changed meanwhile, so " if self.before.files else ""
        raise UsageError(
            f"{why}nothing was written: {'; '.join(troubles[:_NAMED])}{more}",
            hint=self.hint,
        )

    def _trouble(self, change: FileChange, deleted: set[PurePosixPath]) -> str:
        path = change.path
        if _leads_out(path):
            return "leads out of the folder"
        try:
            with self._folder(path.parent) as folder:
                found = _look(folder, path.name)
        except FileNotFoundError:
            found = None
        except NotADirectoryError:
            # A deleted file may make room for a folder, and the reverse.
            in_place = self.after.files.keys() if change.kind == "deleted" else deleted
            return "" if in_place & set(path.parents) else "a file or a link is in the way"
        except IsADirectoryError:
            # Where no file is expected, a folder counts as none.
            free = change.kind == "deleted" or self._holds_only(path, deleted)
            return "" if free else "a folder is in the way"
        except OSError as error:
            linked = error.errno == errno.ELOOP
            return "is a link" if linked else error.strerror or "cannot be read"
        as_it_was = self.before.files.get(path)
        as_it_shall_be = self.after.files.get(path)
        file = None if found is None else found.file
        if self.replace or file in (as_it_was, as_it_shall_be):
            return ""
        return "is gone" if file is None else "is there already" if as_it_was is None else "differs"

    def _holds_only(self, path: PurePosixPath, deleted: set[PurePosixPath]) -> bool:
        """Return whether a folder is empty once these paths are deleted."""
        with self._folder(path) as folder, os.scandir(folder) as entries:
            for entry in entries:
                inner = path / entry.name
                if entry.is_dir(follow_symlinks=False):
                    if not self._holds_only(inner, deleted):
                        return False
                elif inner not in deleted:
                    return False
        return True

    @contextmanager
    def staged(self, changes: tuple[FileChange, ...]) -> Generator[list[_Staged]]:
        """Write new contents beside their targets; the end removes those that were not renamed."""
        staged: list[_Staged] = []
        try:
            # One by one, so that the earlier ones are known when a later one fails.
            staged.extend(
                self._stage(change.path) for change in changes if change.kind != "deleted"
            )
            yield staged
        finally:
            for one in staged:
                with suppress(OSError), self._folder(one.folder) as folder:
                    os.unlink(one.name, dir_fd=folder)

    def _stage(self, path: PurePosixPath) -> _Staged:
        shall_be = self.after.files[path]
        name = self._staged_name(path)
        with ExitStack() as stack:
            place = path.parent
            while True:
                try:
                    folder = stack.enter_context(self._folder(place))
                    break
                except (FileNotFoundError, NotADirectoryError):
                    # The folder does not exist yet: the nearest parent is on the same disk.
                    place = place.parent
            found = None
            with suppress(OSError):
                found = _look(folder, path.name) if place == path.parent else None
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            mode = 0o777 if shall_be.executable else 0o666
            descriptor = os.open(name, flags, mode, dir_fd=folder)
            try:
                write_all(descriptor, shall_be.content)
                if found is not None:
                    _take_after(descriptor, found, executable=shall_be.executable)
                if (given := self.modes.get(path)) is not None:
                    os.fchmod(descriptor, given)
                os.fsync(descriptor)
            except BaseException:
                os.unlink(name, dir_fd=folder)
                raise
            finally:
                os.close(descriptor)
        return _Staged(path=path, folder=place, name=name)

    def delete(self, changes: tuple[FileChange, ...]) -> None:
        """Delete removed files, and folders that become empty."""
        for change in changes:
            if change.kind != "deleted":
                continue
            with (
                suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError),
                self._folder(change.path.parent) as folder,
            ):
                os.unlink(change.path.name, dir_fd=folder)
            for parent in change.path.parents[:-1]:
                try:
                    with self._folder(parent.parent) as folder:
                        os.rmdir(parent.name, dir_fd=folder)
                except OSError:
                    break

    def place(self, staged: list[_Staged]) -> None:
        """Rename every new content to its target."""
        for one in staged:
            for parent in reversed(one.path.parents[:-1]):
                with suppress(FileExistsError), self._folder(parent.parent) as folder:
                    os.mkdir(parent.name, dir_fd=folder)
            with self._folder(one.folder) as source, self._folder(one.path.parent) as target:
                # A folder that is now empty may still exist here.
                with suppress(OSError):
                    os.rmdir(one.path.name, dir_fd=target)
                os.rename(one.name, one.path.name, src_dir_fd=source, dst_dir_fd=target)
                os.fsync(target)

    def _folder(self, path: PurePosixPath) -> AbstractContextManager[int]:
        return _opened_below(self.root, path)


def _leads_out(path: PurePosixPath) -> bool:
    return path.is_absolute() or ".." in path.parts or not path.parts


def read_modes(folder: Path, paths: Iterable[PurePosixPath]) -> dict[PurePosixPath, int]:
    """Return the permissions of those paths that are regular files and behind no link."""
    modes: dict[PurePosixPath, int] = {}
    with suppress(OSError):
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for path in paths:
                with suppress(OSError), _opened_below(root, path.parent) as parent:
                    status = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        modes[path] = stat.S_IMODE(status.st_mode)
        finally:
            os.close(root)
    return modes


@contextmanager
def _opened_below(root: int, path: PurePosixPath) -> Generator[int]:
    """Open a folder below the root, one name at a time, so that no link is followed."""
    descriptor = os.dup(root)
    try:
        for name in path.parts:
            inner = os.open(name, _IN_FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _look(folder: int, name: str) -> _Found | None:
    """Read the file with this name; None if there is none."""
    try:
        descriptor = os.open(name, _OF_FILE, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read()
    finally:
        os.close(descriptor)
    return _Found(
        file=TreeFile(content, executable=bool(status.st_mode & stat.S_IXUSR)),
        mode=stat.S_IMODE(status.st_mode),
        owner=(status.st_uid, status.st_gid),
    )


def _take_after(descriptor: int, found: _Found, *, executable: bool) -> None:
    """Give a new content the owner and the mode of the old one."""
    mode = found.mode
    if executable and not found.file.executable:
        # Users with read permission get execute permission.
        mode |= (mode & 0o444) >> 2
    elif not executable:
        mode &= ~_EXECUTE
    # Only root can change the owner; then the group matters too.
    with suppress(PermissionError):
        os.fchown(descriptor, *found.owner)
    os.fchmod(descriptor, mode)
