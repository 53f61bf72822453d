"""Layers on backends that cannot mount them: copies of files, and changes found by comparing."""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from anyio import to_thread

from assay.contracts.errors import SandboxUnavailableError, UsageError, WorkspaceError
from assay.contracts.execution import FileInfo, PythonCode, WorkspaceChanges
from assay.contracts.ports import Sandbox
from assay.contracts.workspace import WorkspaceLayer

_CREATE_LINKS: Final = b"""
import json, os, sys
for path, target in json.load(sys.stdin):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    os.symlink(target, path)
"""


def list_layer(layer: WorkspaceLayer | None) -> dict[PurePosixPath, FileInfo]:
    """Return every entry of a layer by its path; blocks.

    Raises:
        UsageError: If the layer cannot be read.
    """
    found: dict[PurePosixPath, FileInfo] = {}
    waiting = [] if layer is None else [(str(layer.folder), PurePosixPath())]
    try:
        while waiting:
            folder, path = waiting.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    info = _describe(path / entry.name, entry.stat(follow_symlinks=False))
                    found[info.path] = info
                    if info.kind == "directory":
                        waiting.append((entry.path, info.path))
    except OSError as error:
        raise _unreadable(layer, error) from error
    return found


def _unreadable(layer: WorkspaceLayer | None, error: OSError) -> UsageError:
    name = "" if layer is None else layer.digest[:12]
    return UsageError(f"the layer {name} cannot be read: {error.strerror}")


def _describe(path: PurePosixPath, found: os.stat_result) -> FileInfo:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    kind = kinds.get(stat.S_IFMT(found.st_mode), "other")
    return FileInfo(
        path=path,
        kind=kind,  # pyright: ignore[reportArgumentType] - one of the four kinds
        size_bytes=found.st_size,
        executable=kind == "file" and bool(found.st_mode & stat.S_IXUSR),
    )


async def fill_from_layer(sandbox: Sandbox, layer: WorkspaceLayer | None) -> None:
    """Write every file of a layer into an empty sandbox; raises like `open_sandbox`."""
    if layer is None:
        return
    entries = await to_thread.run_sync(list_layer, layer)
    parents = {path.parent for path in entries}
    links: list[tuple[str, str]] = []
    for path, entry in entries.items():
        place = layer.folder / path
        if entry.kind == "file":
            content = await to_thread.run_sync(_read_file, layer, place)
            await sandbox.write_file(path, content, executable=entry.executable)
        elif entry.kind == "symlink":
            links.append((str(path), os.readlink(place)))  # noqa: PTH115 - keeps `./` in targets
        elif entry.kind == "directory" and path not in parents:
            await sandbox.make_directory(path)
    if links:
        code = PythonCode(source=_CREATE_LINKS, stdin=json.dumps(links).encode())
        result = await sandbox.run(code)
        if not result.succeeded:
            raise SandboxUnavailableError(
                f"the symlinks of the layer could not be created: {result.stderr[-400:]}",
                dispatch="never_started",
            )


def _read_file(layer: WorkspaceLayer, place: Path) -> bytes:
    try:
        with os.fdopen(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return file.read()
    except OSError as error:
        raise _unreadable(layer, error) from error


async def compare_with_layer(sandbox: Sandbox, layer: WorkspaceLayer | None) -> WorkspaceChanges:
    """Return the changes of a sandbox, see `assay.contracts.ports.Sandbox.changes`.

    Two targets of a symlink that have the same length count as equal.
    """
    before = await to_thread.run_sync(list_layer, layer)
    now = {entry.path: entry for entry in await sandbox.list_files()}
    written: list[FileInfo] = []
    for path, entry in now.items():
        old = before.get(path)
        if entry.kind == "directory" and old is not None and old.kind == "directory":
            continue
        if layer is None or entry != old or await _differs(sandbox, layer, entry):
            written.append(entry)
    return WorkspaceChanges(
        written=tuple(sorted(written, key=lambda entry: entry.path)),
        removed=removed_paths(before, now),
    )


async def _differs(sandbox: Sandbox, layer: WorkspaceLayer, entry: FileInfo) -> bool:
    if entry.kind != "file" or not entry.size_bytes:
        return False
    content = await to_thread.run_sync(_read_file, layer, layer.folder / entry.path)
    try:
        return content != await sandbox.read_file(entry.path, max_bytes=entry.size_bytes)
    except WorkspaceError:
        # Changed meanwhile, or made unreadable.
        return True


def removed_paths(
    before: Mapping[PurePosixPath, FileInfo], now: Mapping[PurePosixPath, FileInfo]
) -> tuple[PurePosixPath, ...]:
    """Return the topmost paths that are gone, except those below something that replaced one."""
    gone: list[PurePosixPath] = []
    for path in before.keys() - now.keys():
        parent = path.parent
        if parent == PurePosixPath() or (parent in now and now[parent].kind == "directory"):
            gone.append(path)
    return tuple(sorted(gone))
