"""Copies the files of a tree into a sandbox and back."""

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.errors import FileTooLargeError, WorkspaceError
from assay.contracts.ports import Sandbox
from assay.contracts.workspace import (
    LEFTOVER_NAMES,
    LEFTOVER_SUFFIXES,
    Tree,
    TreeFile,
    changes_between,
)

_BUILT_BY: Final = frozenset({"Cargo.toml", "pom.xml"})
_BUILT: Final = "target"
"""The build folder of Cargo and Maven, beside their file; elsewhere an ordinary name."""
_LARGEST_FILE_BYTES: Final = 64 << 20
"""As much as a workspace may have: `--include` also uses large files."""
_MOST_FILES: Final = 20_000


def build_folders(paths: Iterable[PurePosixPath]) -> frozenset[PurePosixPath]:
    """Return the build folders that belong to these paths."""
    return frozenset(path.with_name(_BUILT) for path in paths if path.name in _BUILT_BY)


def is_work(path: PurePosixPath, built: frozenset[PurePosixPath]) -> bool:
    """Whether a path can be part of a change, and is not a file that a tool left behind."""
    if LEFTOVER_NAMES.intersection(path.parts) or path.suffix in LEFTOVER_SUFFIXES:
        return False
    return not built.intersection((path, *path.parents))


async def write_tree(sandbox: Sandbox, tree: Tree) -> None:
    """Write every file of a tree into an empty sandbox."""
    await update_tree(sandbox, Tree(), tree)


async def update_tree(sandbox: Sandbox, before: Tree, after: Tree) -> None:
    """Replace the tree in a sandbox by another one."""
    for change in changes_between(before, after):
        if change.kind == "deleted":
            await sandbox.remove_path(change.path)
        else:
            file = after.files[change.path]
            await sandbox.write_file(change.path, file.content, executable=file.executable)


async def read_tree(sandbox: Sandbox) -> Tree:
    """Return the files of a sandbox, without leftovers of tools; list unreadable ones as links."""
    files: dict[PurePosixPath, TreeFile] = {}
    links: list[PurePosixPath] = []
    entries = await sandbox.list_files()
    built = build_folders(entry.path for entry in entries)
    for entry in entries:
        if entry.kind == "directory" or not is_work(entry.path, built):
            continue
        if entry.kind != "file" or len(files) >= _MOST_FILES:
            links.append(entry.path)
            continue
        try:
            content = await sandbox.read_file(entry.path, max_bytes=_LARGEST_FILE_BYTES)
        except (FileTooLargeError, WorkspaceError):
            # Gone or replaced meanwhile, or too large for a solution.
            links.append(entry.path)
            continue
        files[entry.path] = TreeFile(content, entry.executable)
    return Tree(files=files, links=tuple(links))
