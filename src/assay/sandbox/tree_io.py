"""Opens sandboxes with the files of a tree, and reads back what programs changed."""

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.errors import FileTooLargeError, WorkspaceError
from assay.contracts.execution import DEFAULT_SPEC, FileInfo, Limits, SandboxSpec
from assay.contracts.ports import Sandbox, SandboxBackend
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
_BUILT_WITH: Final = "CMakeCache.txt"
"""CMake writes it into each of its build folders."""
_LARGEST_FILE_BYTES: Final = 64 << 20
"""As much as a workspace may have: `--include` also uses large files."""
_MOST_FILES: Final = 20_000


def build_folders(paths: Iterable[PurePosixPath]) -> frozenset[PurePosixPath]:
    """Return the build folders that belong to these paths; never the workspace itself."""
    found: set[PurePosixPath] = set()
    for path in paths:
        if path.name in _BUILT_BY:
            found.add(path.with_name(_BUILT))
        elif path.name == _BUILT_WITH and path.parent.parts:
            found.add(path.parent)
    return frozenset(found)


def is_work(path: PurePosixPath, built: frozenset[PurePosixPath]) -> bool:
    """Whether a path can be part of a change, and is not a file that a tool left behind."""
    if LEFTOVER_NAMES.intersection(path.parts) or path.suffix in LEFTOVER_SUFFIXES:
        return False
    return not built.intersection((path, *path.parents))


@asynccontextmanager
async def open_tree(
    backend: SandboxBackend, limits: Limits, tree: Tree, equipment: SandboxSpec = DEFAULT_SPEC
) -> AsyncGenerator[Sandbox]:
    """Open a sandbox with the files of a tree: from its layer, plus the differences from it.

    Raises the errors of `open_sandbox` and `write_file`.
    """
    layer = None if tree.origin is None else tree.origin.layer
    async with backend.open_sandbox(limits, replace(equipment, layer=layer)) as sandbox:
        await update_tree(sandbox, tree.base, tree)
        yield sandbox


async def update_tree(sandbox: Sandbox, before: Tree, after: Tree) -> None:
    """Write the differences of two trees into a sandbox that has the files of the first."""
    changes = changes_between(before, after)
    # Deletions first: a directory may take the place of a file, and the reverse.
    for change in changes:
        if change.kind == "deleted":
            await sandbox.remove_path(change.path)
    for change in changes:
        if change.kind != "deleted":
            file = after.files[change.path]
            await sandbox.write_file(change.path, file.content, executable=file.executable)


async def read_changes(sandbox: Sandbox, tree: Tree) -> Tree:
    """Return the files of a sandbox that was opened with a tree, or with one of the same layer.

    Leaves out what tools left behind, and lists links and unreadable files as links. Only files
    that differ from the layer are read; those that equal the tree's keep its objects.
    """
    base = tree.base
    changes = await sandbox.changes()
    written = [entry for entry in changes.written if entry.kind != "directory"]
    files = dict(base.files)
    if tree.origin is not None:
        for path in tree.origin.below((*changes.removed, *(entry.path for entry in written))):
            del files[path]
    built: frozenset[PurePosixPath] = frozenset()
    if any(_BUILT in entry.path.parts or entry.path.name == _BUILT_WITH for entry in written):
        built = build_folders((*files, *(entry.path for entry in written)))
    links: list[PurePosixPath] = []
    for number, entry in enumerate(entry for entry in written if is_work(entry.path, built)):
        file = None
        if entry.kind == "file" and number < _MOST_FILES:
            file = await _read_one(sandbox, entry)
        if file is None:
            links.append(entry.path)
        else:
            files[entry.path] = next((f for f in _known(entry.path, tree, base) if f == file), file)
    return replace(tree, files=files, links=tuple(links))


def _known(path: PurePosixPath, *trees: Tree) -> Iterator[TreeFile]:
    return (tree.files[path] for tree in trees if path in tree.files)


async def _read_one(sandbox: Sandbox, entry: FileInfo) -> TreeFile | None:
    try:
        content = await sandbox.read_file(entry.path, max_bytes=_LARGEST_FILE_BYTES)
    except (FileTooLargeError, WorkspaceError):
        # Gone or replaced meanwhile, or too large for a solution.
        return None
    return TreeFile(content, entry.executable)
