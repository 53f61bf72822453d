"""Files of a person's folder into a sandbox and back: copied, compared, and applied on request.

What comes back is untrusted: links, devices and whatever is too large are named and left where they
are, and nothing in the folder is changed but by `Changes.apply`.
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
"""Told bytes done, bytes in all, and what is being copied."""

_FROM_SANDBOX: Final = Caps(total_bytes=256 << 20, file_bytes=64 << 20, files=20_000)
_CACHE_MARKS: Final = frozenset({"CACHEDIR.TAG", "pyvenv.cfg"})
_NOT_APPLIED: Final = "look at both, or save what was made somewhere else with --artifacts"
_NOT_DOWNLOADED: Final = "name another folder, or ask for files to be replaced"


def ignore_progress(done_bytes: int, total_bytes: int, what: str) -> None:
    """Be the listener of someone who only waits."""
    del done_bytes, total_bytes, what


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFile:
    """Something in the sandbox that does not come out of it."""

    path: PurePosixPath
    why: str


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What became of the files of an upload. Nothing of it is in the person's folder yet."""

    folder: Path
    before: Tree
    after: Tree
    left_out: tuple[SkippedFile, ...]
    """What was made and stays behind; a file of the upload that is named here counts as kept."""

    @cached_property
    def files(self) -> tuple[FileChange, ...]:
        return changes_between(self.before, self.after)

    @cached_property
    def artifacts(self) -> tuple[Artifact, ...]:
        """What was added or modified, with its type."""
        return tuple(
            describe_file(change.path, self.after.files[change.path])
            for change in self.files
            if change.kind != "deleted"
        )

    def diff(self) -> str:
        """Return the changes as a unified diff."""
        return unified_diff(self.before, self.after)

    async def apply(self) -> tuple[FileChange, ...]:
        """Make the changes in the person's folder, all of them or none; returns them.

        Raises:
            UsageError: If a file to be changed is not as it was uploaded, a link or a folder is in
                the way, or something cannot be written. Nothing was changed then.
        """
        act = partial(write_changes, self.folder, self.before, self.after, hint=_NOT_APPLIED)
        return await anyio.to_thread.run_sync(act)

    async def save_artifacts(
        self, folder: str | PathLike[str], *, replace: bool = False
    ) -> tuple[Artifact, ...]:
        """Write what was added or modified into another folder.

        Raises:
            UsageError: If a file is there already and `replace` is not asked for, a link is in the
                way, or something cannot be written. Nothing was written then.
        """
        made = {one.path: self.after.files[one.path] for one in self.artifacts}
        await _write_out(Path(folder), Tree(files=made), replace=replace)
        return self.artifacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Files of the host that were copied into a sandbox, to be compared with later."""

    sandbox: Sandbox
    folder: Path
    before: Tree
    exclude: tuple[str, ...]

    async def changes(self, *, on_progress: OnProgress = ignore_progress) -> Changes:
        """Compare what is in the sandbox now with what was uploaded.

        Raises:
            UsageError: If there is far too much in it.
            SandboxUnavailableError: If the sandbox is gone.
        """
        found, left_out = await _read_sandbox(self.sandbox, self.exclude, on_progress)
        for path in [path for path in found if self.before.why_withheld(path)]:
            del found[path]
            why = "your own was withheld and stays as it is (--include uses it)"
            left_out.append(SkippedFile(path=path, why=why))
        # What became a link or too large, or was hidden behind one, was not deleted by anybody.
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
    on_progress: OnProgress = ignore_progress,
) -> Upload:
    """Copy a folder, or one file, of the host into a sandbox.

    Left out are version control, caches, environments, whatever matches a glob of `exclude`, and
    everything that is no regular file; no link is followed. Of a folder, what git ignores and what
    looks like a secret is withheld unless `include` names it; `Upload.before` says which.

    Raises:
        UsageError: If it cannot be read, or is larger than a workspace may be.
        WorkspaceError: If it does not fit into the sandbox, or something there is in the way.
        SandboxUnavailableError: If the sandbox is gone.
    """
    patterns = tuple(exclude)
    path = Path(source)
    folder, tree = await anyio.to_thread.run_sync(_read_source, path, patterns, tuple(include))
    total = sum(len(file.content) for file in tree.files.values())
    done = 0
    for name, file in sorted(tree.files.items()):
        on_progress(done, total, str(name))
        await sandbox.write_file(name, file.content, executable=file.executable)
        done += len(file.content)
    on_progress(done, total, "")
    return Upload(sandbox=sandbox, folder=folder, before=tree, exclude=patterns)


async def download(
    sandbox: Sandbox,
    folder: str | PathLike[str],
    *,
    replace: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> tuple[Artifact, ...]:
    """Copy the files of a sandbox into a folder of the host; returns what was copied.

    Links, devices and what is too large stay behind, and so do caches and environments.

    Raises:
        UsageError: If a file is there already and `replace` is not asked for, a link is in the way,
            or something cannot be written. Nothing was written then.
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
    path: Path, exclude: tuple[str, ...], include: tuple[str, ...]
) -> tuple[Path, Tree]:
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        return path, read_workspace(path, exclude=exclude, include=included_paths(path, include))
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
    """Return a file's content, or why it stays behind."""
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
    """Return what would be read of a folder of the host, too; both sides must agree on it."""
    entries = tuple(entries)
    marked = set(_marked_folders(entries))

    def counts(path: PurePosixPath) -> bool:
        whole = (path, *path.parents[:-1])
        return not any(part in marked or is_left_out(part, exclude) for part in whole)

    return [entry for entry in entries if counts(entry.path)]


def _marked_folders(entries: Iterable[FileInfo]) -> list[PurePosixPath]:
    """Return the folders that say of themselves that all in them can be made again."""
    return sorted(
        {
            entry.path.parent
            for entry in entries
            if entry.path.name in _CACHE_MARKS and entry.path.parent.parts
        }
    )
