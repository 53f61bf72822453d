"""Workspace trees: the files of a workspace at one moment, as values.

Includes the names of files that tools leave in a workspace, which Assay does not read or change.
"""

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final, Literal, Protocol

from assay.contracts.errors import UsageError

_SOURCE_FOLDER: Final = "src"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_EXPORT: Final = f'export PYTHONPATH="$PWD/{_SOURCE_FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}"; '


_PIP: Final = (
    'pip() { case "$1" in list|freeze) python3 -c \'import importlib.metadata as m; '
    'print(*sorted({f"{d.name}=={d.version}" for d in m.distributions()}, key=str.lower), '
    'sep="\\n")\' ;; *) command pip "$@" ;; esac; }; pip3() { pip "$@"; }; '
)
"""The pip of the system lists the packages of another interpreter."""
_ASSIGNS_PATH: Final = re.compile(
    r"((?:^|[;&|(]|\benv\b|\bexport\b)\s*(?:\w+=[^\s;&|()]*\s+)*"
    r"PYTHONPATH=(?:\"[^\"]*\"|'[^']*'|[^\s;&|()\"']+))"
)


def project_env(cwd: PurePosixPath = PurePosixPath()) -> Mapping[str, str]:
    """Return the environment in which a program in this folder can import a src layout."""
    folders = dict.fromkeys((_SOURCE_FOLDER, posixpath.relpath(_SOURCE_FOLDER, cwd)))
    return {"PYTHONPATH": ":".join(folders)}


def project_script(script: str) -> tuple[str, ...]:
    """Return the command for a shell script that can import a src layout after `cd` too."""
    if "<<" not in script:  # the text of a file stays as it is
        # A program that gets its own search path still finds the packages of the sandbox.
        script = _ASSIGNS_PATH.sub(r"\1${ASSAY_PACKAGES:+:$ASSAY_PACKAGES}", script)
    return ("bash", "-c", _EXPORT + _PIP + script)


class StoredContent(Protocol):
    """The content of a file in a store, read on each use: large trees need little memory."""

    @property
    def sha256(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read(self) -> bytes:
        """Return the content.

        Raises:
            JournalError: If it is missing, or its digest differs.
        """
        ...


@dataclass(frozen=True, eq=False)
class TreeFile:
    """One regular file. Two are equal if their contents and their executable bits are."""

    source: bytes | StoredContent
    executable: bool = False

    @property
    def content(self) -> bytes:
        return self.source if isinstance(self.source, bytes) else self.source.read()

    @property
    def size(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.size

    @cached_property
    def sha256(self) -> str:
        if isinstance(self.source, bytes):
            return hashlib.sha256(self.source).hexdigest()
        return self.source.sha256

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, TreeFile):
            return NotImplemented
        if self.executable != other.executable or self.size != other.size:
            return False
        if isinstance(self.source, bytes) and isinstance(other.source, bytes):
            return self.source == other.source
        return self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash((self.executable, self.size))


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


@dataclass(frozen=True, eq=False, kw_only=True)
class CapturedFiles:
    """The files of a captured layer."""

    layer: "WorkspaceLayer"
    files: Mapping[PurePosixPath, TreeFile]

    @cached_property
    def folders(self) -> frozenset[PurePosixPath]:
        """All folders that have files."""
        direct = {path.parent for path in self.files}
        return frozenset(direct.union(*(path.parents for path in direct)))

    def below(self, paths: Iterable[PurePosixPath]) -> frozenset[PurePosixPath]:
        """Return the files that are one of these paths or below one."""
        tops = frozenset(paths)
        found = tops & self.files.keys()
        if not tops.isdisjoint(self.folders):
            found |= {path for path in self.files if not tops.isdisjoint(path.parents)}
        return found


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Regular files by their paths from the root. Empty directories are not included."""

    files: Mapping[PurePosixPath, TreeFile] = field(default_factory=dict[PurePosixPath, TreeFile])
    links: tuple[PurePosixPath, ...] = ()
    """Entries that were neither files nor directories: listed, never followed."""
    withheld: tuple[Withheld, ...] = ()
    """Paths that were not read, as git ignores them or they look like secrets: not in `digest`."""
    origin: CapturedFiles | None = field(default=None, compare=False, repr=False)
    """The layer from which this tree was captured or derived; None if there is none."""

    @property
    def base(self) -> "Tree":
        """The files of the layer; none without a layer."""
        return Tree() if self.origin is None else Tree(files=self.origin.files, origin=self.origin)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over paths, modes and contents: identifies a tree."""
        # By parts, the order of paths, but compared without a call to Python code for each pair.
        lines = (
            f"{path}\0{'x' if file.executable else '-'}\0{file.sha256}\n"
            for path, file in sorted(self.files.items(), key=lambda item: item[0].parts)
        )
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()

    def with_only(self, files: Mapping[PurePosixPath, TreeFile]) -> "Tree":
        """Return a tree with these files in place of all others."""
        return replace(self, files=files)

    def with_files(self, files: Mapping[PurePosixPath, TreeFile]) -> "Tree":
        """Return a tree with these files added, in place of those with the same path."""
        if not files:
            return self
        return replace(self, files={**self.files, **files})

    def without(self, paths: Iterable[PurePosixPath]) -> "Tree":
        """Return a tree without these files."""
        gone = frozenset(paths)
        if not gone:
            return self
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


@dataclass(frozen=True, slots=True)
class WorkspaceLayer:
    """A host folder with the files that a workspace starts with; no sandbox ever changes it.

    It holds only regular files, directories and symlinks, with the modes that programs see. Its
    owner keeps it unchanged as long as a sandbox uses it.

    Raises:
        UsageError: If the digest or the folder has a wrong form.
    """

    digest: str
    """SHA-256 as 64 hexadecimal digits: equal digests mean equal folders."""
    folder: Path
    """An absolute path."""

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest):
            raise UsageError(f"not the digest of a layer: {self.digest!r:.80}")
        if not self.folder.is_absolute() or ".." in self.folder.parts:
            raise UsageError(f"the folder of a layer is not absolute: {str(self.folder)!r:.200}")


ChangeKind = Literal["added", "modified", "deleted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One path that differs between two trees."""

    path: PurePosixPath
    kind: ChangeKind


def changes_between(before: Tree, after: Tree) -> tuple[FileChange, ...]:
    """Return what was added, modified (mode included) and deleted, sorted by path."""
    old_files, new_files = before.files, after.files
    if old_files is new_files:
        return ()
    kinds: dict[PurePosixPath, ChangeKind] = {}
    same = 0
    for path, new in new_files.items():
        old = old_files.get(path)
        if old is None:
            kinds[path] = "added"
            continue
        same += 1
        # Trees of one run share the objects of unchanged files.
        if old is not new and old != new:
            kinds[path] = "modified"
    if same < len(old_files):
        kinds.update((path, "deleted") for path in old_files if path not in new_files)
    return tuple(FileChange(path=path, kind=kinds[path]) for path in sorted(kinds))


LEFTOVER_NAMES: Final = frozenset(
    {
        *(".git", ".hg", ".svn", ".jj", ".assay", ".DS_Store"),
        *("__pycache__", ".venv", ".tox", ".nox", ".eggs", "node_modules"),
        *(".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
        *(".gradle", ".terraform", ".next", ".nuxt", ".parcel-cache", ".turbo"),
    }
)
LEFTOVER_SUFFIXES: Final = (".pyc", ".pyo")
