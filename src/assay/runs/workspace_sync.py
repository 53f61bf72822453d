"""Copy files from a user's folder into a sandbox and back, and apply changes on request.

Files from the sandbox are untrusted. Links, devices and files that are too large are listed and
stay in the sandbox. Only `Changes.apply` changes the user's folder.
"""

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Final

import anyio.to_thread

from assay.contracts.artifacts import Artifact, describe_file
from assay.contracts.errors import FileTooLargeError, UsageError, WorkspaceError
from assay.contracts.execution import FileInfo
from assay.contracts.ports import Sandbox
from assay.contracts.workspace import FileChange, Tree, TreeFile, changes_between
from assay.storage.apply_changes import write_changes
from assay.storage.read_workspace import Caps, included_paths, is_left_out, read_workspace
from assay.text.diffs import unified_diff

OnProgress = Callable[[int, int, str], None]
"""Receives the bytes done, the total bytes, and the name of the current item."""

_FROM_SANDBOX: Final = Caps(total_bytes=256 << 20, file_bytes=64 << 20, files=20_000)
_CACHE_MARKS: Final = frozenset({"CACHEDIR.TAG", "pyvenv.cfg"})
_NOT_APPLIED: Final = "look at both, or save what was made somewhere else with --artifacts"
_NOT_DOWNLOADED: Final = "name another folder, or ask for files to be replaced"


def ignore_progress(done_bytes: int, total_bytes: int, what: str) -> None:
    """Ignore progress."""
    del done_bytes, total_bytes, what


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFile:
    """An entry of the sandbox that is not copied out."""

    path: PurePosixPath
    why: str


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changes to the uploaded files. None of them is in the user's folder yet."""

    folder: Path
    before: Tree
    after: Tree
    left_out: tuple[SkippedFile, ...]
    """New entries that stay in the sandbox; an uploaded file in this list counts as unchanged."""

    @cached_property
    def files(self) -> tuple[FileChange, ...]:
        return changes_between(self.before, self.after)

    @cached_property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The added and modified files, with their media types."""
        return tuple(
            describe_file(change.path, self.after.files[change.path])
            for change in self.files
            if change.kind != "deleted"
        )

    def diff(self) -> str:
        """Return the changes as a unified diff."""
        return unified_diff(self.before, self.after)

    async def apply(self) -> tuple[FileChange, ...]:
        """Apply all changes to the user's folder, or none; returns them.

        Raises:
            UsageError: If a file differs from its uploaded version, a link or folder is in the way,
                or a write fails. Nothing has changed then.
        """
        act = partial(write_changes, self.folder, self.before, self.after, hint=_NOT_APPLIED)
        return await anyio.to_thread.run_sync(act)

    async def save_artifacts(
        self, folder: str | PathLike[str], *, replace: bool = False
    ) -> tuple[Artifact, ...]:
        """Write the added and modified files into another folder.

        Raises:
            UsageError: If a file exists and `replace` is false, a link is in the way, or a write
                fails. Nothing has been written then.
        """
        made = {one.path: self.after.files[one.path] for one in self.artifacts}
        await _write_out(Path(folder), Tree(files=made), replace=replace)
        return self.artifacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Files that were copied from the host into a sandbox, for a later comparison."""

    sandbox: Sandbox
    folder: Path
    before: Tree
    exclude: tuple[str, ...]

    async def changes(self, *, on_progress: OnProgress = ignore_progress) -> Changes:
        """Compare the current files of the sandbox with the upload.

        Raises:
            UsageError: If the sandbox holds far more files than a workspace may have.
            SandboxUnavailableError: If the sandbox is gone.
        """
        found, left_out = await _read_sandbox(self.sandbox, self.exclude, on_progress)
        for path in [path for path in found if self.before.why_withheld(path)]:
            del found[path]
            why = "your own was withheld and stays as it is (--include uses it)"
            left_out.append(SkippedFile(path=path, why=why))
        # A file that was replaced by a link, grew too large or lies behind a link was not deleted.
        behind = {one.path for one in left_out}
        hidden = {
            path: file
            for path, file in self.before.files.items()
            if path not in found and (path in behind or behind.intersection(path.parents))
        }
        after = Tree(files={**found, **hidden})
        return Changes(
            folder=self.folder,
            before=Tree(files=self.before.files, withheld=self.before.withheld),
            after=after,
            left_out=tuple(left_out),
        )


async def upload(
    sandbox: Sandbox,
    source: str | PathLike[str],
    *,
    exclude: Iterable[str] = (),
    include: Iterable[str] = (),
    secret_names: Iterable[str] = (),
    on_progress: OnProgress = ignore_progress,
) -> Upload:
    """Copy a folder or one file from the host into a sandbox.

    Version control, caches, environments, matches of `exclude` and non-regular files are left out;
    links are not followed. In a folder, files that git ignores or that look like secrets are
    withheld unless `include` names them, and so are the globs in `secret_names`. `Upload.before`
    lists them.

    Raises:
        UsageError: If a file cannot be read, or the total exceeds the size of a workspace.
        WorkspaceError: If the files do not fit into the sandbox, or an entry there is in the way.
        SandboxUnavailableError: If the sandbox is gone.
    """
    patterns = tuple(exclude)
    path = Path(source)
    read = partial(_read_source, path, patterns, tuple(include), tuple(secret_names))
    folder, tree = await anyio.to_thread.run_sync(read)
    total = sum(file.size for file in tree.files.values())
    done = 0
    for name, file in sorted(tree.files.items()):
        on_progress(done, total, str(name))
        await sandbox.write_file(name, file.content, executable=file.executable)
        done += file.size
    on_progress(done, total, "")
    return Upload(sandbox=sandbox, folder=folder, before=tree, exclude=patterns)


async def download(
    sandbox: Sandbox,
    folder: str | PathLike[str],
    *,
    replace: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> tuple[Artifact, ...]:
    """Copy the files of a sandbox into a folder of the host; returns the copied files.

    Links, devices and files that are too large stay behind, as do caches and environments.

    Raises:
        UsageError: If a file exists and `replace` is false, a link is in the way, or a write fails.
            Nothing has been written then.
        SandboxUnavailableError: If the sandbox is gone.
    """
    files, _ = await _read_sandbox(sandbox, (), on_progress)
    await _write_out(Path(folder), Tree(files=files), replace=replace)
    return tuple(describe_file(path, file) for path, file in sorted(files.items()))


async def _write_out(folder: Path, tree: Tree, *, replace: bool) -> None:
    def act() -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make {str(folder)!r}: {error.strerror}") from error
        write_changes(folder, Tree(), tree, replace=replace, hint=_NOT_DOWNLOADED)

    await anyio.to_thread.run_sync(act)


def _read_source(
    path: Path, exclude: tuple[str, ...], include: tuple[str, ...], secret_names: tuple[str, ...]
) -> tuple[Path, Tree]:
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        return path, read_workspace(
            path,
            exclude=exclude,
            include=included_paths(path, include),
            secret_names=secret_names,
        )
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{str(path)!r} is neither a folder nor a file")
    if status.st_size > Caps().file_bytes:
        raise UsageError(f"{str(path)!r} is larger than a file of a workspace may be")
    try:
        file = TreeFile(path.read_bytes(), executable=os.access(path, os.X_OK))
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    return path.absolute().parent, Tree(files={PurePosixPath(path.name): file})


async def _read_sandbox(
    sandbox: Sandbox, exclude: tuple[str, ...], on_progress: OnProgress
) -> tuple[dict[PurePosixPath, TreeFile], list[SkippedFile]]:
    files: dict[PurePosixPath, TreeFile] = {}
    left_out: list[SkippedFile] = []
    entries = await sandbox.list_files()
    wanted = [entry for entry in _of_interest(entries, exclude) if entry.kind != "directory"]
    total = sum(entry.size_bytes for entry in wanted if entry.kind == "file")
    done = 0
    for entry in wanted:
        if entry.kind != "file":
            why = "a link" if entry.kind == "symlink" else "neither a file nor a folder"
            left_out.append(SkippedFile(path=entry.path, why=why))
            continue
        on_progress(done, total, str(entry.path))
        content = await _read_one(sandbox, entry, files, _FROM_SANDBOX.total_bytes - done)
        if isinstance(content, str):
            left_out.append(SkippedFile(path=entry.path, why=content))
        else:
            files[entry.path] = TreeFile(content, entry.executable)
            done += len(content)
    on_progress(done, total, "")
    left_out.extend(
        SkippedFile(path=path, why="a cache or an environment")
        for path in _marked_folders(entries)
        if not is_left_out(path, exclude)
    )
    return files, left_out


async def _read_one(
    sandbox: Sandbox, entry: FileInfo, files: dict[PurePosixPath, TreeFile], room: int
) -> bytes | str:
    """Return a file's content, or the reason to leave it in the sandbox."""
    if len(files) >= _FROM_SANDBOX.files:
        return f"more than {_FROM_SANDBOX.files:,} files"
    if entry.size_bytes > room:
        return "too much in all"
    try:
        return await sandbox.read_file(entry.path, max_bytes=min(_FROM_SANDBOX.file_bytes, room))
    except FileTooLargeError as error:
        return f"too large: {error.size_bytes:,} bytes"
    except WorkspaceError:
        return "not readable as a file"


def _of_interest(entries: Iterable[FileInfo], exclude: tuple[str, ...]) -> list[FileInfo]:
    """Return the entries that a read of a host folder would include; both sides must agree."""
    entries = tuple(entries)
    marked = set(_marked_folders(entries))

    def counts(path: PurePosixPath) -> bool:
        whole = (path, *path.parents[:-1])
        return not any(part in marked or is_left_out(part, exclude) for part in whole)

    return [entry for entry in entries if counts(entry.path)]


def _marked_folders(entries: Iterable[FileInfo]) -> list[PurePosixPath]:
    """Return the folders that a marker file declares as reproducible."""
    return sorted(
        {
            entry.path.parent
            for entry in entries
            if entry.path.name in _CACHE_MARKS and entry.path.parent.parts
        }
    )
