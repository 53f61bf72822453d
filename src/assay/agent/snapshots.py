"""Files of a tree into a sandbox, and back out of it."""

from pathlib import PurePosixPath
from typing import Final

from assay.contracts.errors import FileTooLargeError, WorkspaceError
from assay.contracts.ports import Sandbox
from assay.contracts.workspace import Tree, TreeFile, changes_between

_NOT_WORK: Final = frozenset(
    {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".git", ".assay"}
    | {"node_modules", "target", ".venv", ".tox", ".nox"}
)
"""Folders that tools leave behind: nobody proposes them, and what the person has there stays."""
_LARGEST_FILE_BYTES: Final = 16 << 20
_MOST_FILES: Final = 20_000


def is_work(path: PurePosixPath) -> bool:
    """Whether a path could be part of a proposal, and not something a tool left behind."""
    return not _NOT_WORK.intersection(path.parts) and path.suffix not in {".pyc", ".pyo"}


async def write_tree(sandbox: Sandbox, tree: Tree) -> None:
    """Put every file of a tree into an empty sandbox."""
    await update_tree(sandbox, Tree(), tree)


async def update_tree(sandbox: Sandbox, before: Tree, after: Tree) -> None:
    """Make a sandbox that holds one tree hold another one."""
    for change in changes_between(before, after):
        if change.kind == "deleted":
            await sandbox.remove_path(change.path)
        else:
            file = after.files[change.path]
            await sandbox.write_file(change.path, file.content, executable=file.executable)


async def read_tree(sandbox: Sandbox) -> Tree:
    """Return the files of a sandbox, without what tools left behind or what nobody could keep."""
    files: dict[PurePosixPath, TreeFile] = {}
    links: list[PurePosixPath] = []
    for entry in await sandbox.list_files():
        if entry.kind == "directory" or not is_work(entry.path):
            continue
        if entry.kind != "file" or len(files) >= _MOST_FILES:
            links.append(entry.path)
            continue
        try:
            content = await sandbox.read_file(entry.path, max_bytes=_LARGEST_FILE_BYTES)
        except (FileTooLargeError, WorkspaceError):
            # Gone or swapped meanwhile, or far too large to be anybody's solution.
            links.append(entry.path)
            continue
        files[entry.path] = TreeFile(content, entry.executable)
    return Tree(files=files, links=tuple(links))
