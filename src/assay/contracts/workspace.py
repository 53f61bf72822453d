"""Workspace trees: the files of a workspace at one moment, as values.

Includes the names of files that tools leave in a workspace, which Assay does not read or change.
"""

import hashlib
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final, Literal

_SOURCE_FOLDER: Final = "src"
_EXPORT: Final = f'export PYTHONPATH="$PWD/{_SOURCE_FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}"; '


def project_env(cwd: PurePosixPath = PurePosixPath()) -> Mapping[str, str]:
    """Return the environment in which a program in this folder can import a src layout."""
    folders = dict.fromkeys((_SOURCE_FOLDER, posixpath.relpath(_SOURCE_FOLDER, cwd)))
    return {"PYTHONPATH": ":".join(folders)}


def project_script(script: str) -> tuple[str, ...]:
    """Return the command for a shell script that can import a src layout after `cd` too."""
    return ("bash", "-c", _EXPORT + script)


@dataclass(frozen=True, slots=True)
class TreeFile:
    """One regular file."""

    content: bytes
    executable: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """A file or folder of the workspace that a run neither sees nor changes."""

    path: PurePosixPath
    why: str
    folder: bool = False

    def covers(self, path: PurePosixPath) -> bool:
        """Whether a path is this one, or inside it."""
        return path == self.path or (self.folder and self.path in path.parents)

    def __str__(self) -> str:
        return f"{self.path}/" if self.folder else str(self.path)


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Regular files by their paths from the root. Empty directories are not included."""

    files: Mapping[PurePosixPath, TreeFile] = field(default_factory=dict[PurePosixPath, TreeFile])
    links: tuple[PurePosixPath, ...] = ()
    """Entries that were neither files nor directories: listed, never followed."""
    withheld: tuple[Withheld, ...] = ()
    """Paths that were not read, as git ignores them or they look like secrets: not in `digest`."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 over paths, modes and contents: identifies a tree."""
        lines = (
            f"{path}\0{'x' if file.executable else '-'}\0{file.sha256}\n"
            for path, file in sorted(self.files.items())
        )
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()

    def with_files(self, files: Mapping[PurePosixPath, TreeFile]) -> "Tree":
        """Return a tree with these files added, in place of those with the same path."""
        return replace(self, files={**self.files, **files})

    def without(self, paths: Iterable[PurePosixPath]) -> "Tree":
        """Return a tree without these files."""
        gone = frozenset(paths)
        kept = {path: file for path, file in self.files.items() if path not in gone}
        return replace(self, files=kept)

    def why_withheld(self, path: PurePosixPath) -> str:
        """Return why a path must not be written; empty if it may."""
        return next((one.why for one in self.withheld if one.covers(path)), "")

    def text(self, path: PurePosixPath) -> str | None:
        """Return the text of a file; None if it does not exist or is not UTF-8."""
        file = self.files.get(path)
        try:
            return None if file is None else file.content.decode()
        except UnicodeDecodeError:
            return None


ChangeKind = Literal["added", "modified", "deleted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One path that differs between two trees."""

    path: PurePosixPath
    kind: ChangeKind


def changes_between(before: Tree, after: Tree) -> tuple[FileChange, ...]:
    """Return what was added, modified (mode included) and deleted, sorted by path."""
    changes: list[FileChange] = []
    for path in sorted(before.files.keys() | after.files.keys()):
        old, new = before.files.get(path), after.files.get(path)
        if old == new:
            continue
        kind: ChangeKind = "added" if old is None else "deleted" if new is None else "modified"
        changes.append(FileChange(path=path, kind=kind))
    return tuple(changes)


LEFTOVER_NAMES: Final = frozenset(
    {
        *(".git", ".hg", ".svn", ".jj", ".assay", ".DS_Store"),
        *("__pycache__", ".venv", ".tox", ".nox", ".eggs", "node_modules"),
        *(".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
        *(".gradle", ".terraform", ".next", ".nuxt", ".parcel-cache", ".turbo"),
    }
)
LEFTOVER_SUFFIXES: Final = (".pyc", ".pyo")
