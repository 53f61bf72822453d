"""Reads a host folder into a tree: regular files only, without following links."""

import os
import re
import stat
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from assay.contracts.errors import UsageError
from assay.contracts.workspace import LEFTOVER_NAMES, LEFTOVER_SUFFIXES, Tree, TreeFile, Withheld
from assay.storage.gitignore import RULES_FILE
from assay.storage.withheld_files import (
    BY_NAME,
    FolderRules,
    Guard,
    build_guard,
    is_public,
    secret_by_content,
)

STAGED: Final = ".assay-staged-"
"""The prefix of files that Assay is writing into a folder."""

_CACHE_TAG: Final = "CACHEDIR.TAG"
_CACHE_SIGNATURE: Final = b"Signature: 8a477f597d28d172789f06886806bc55"
_ENVIRONMENT_MARK: Final = "pyvenv.cfg"

_IN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking: a FIFO may have replaced the file a moment ago.
_OF_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MEGABYTE: Final = 1 << 20
_LARGEST_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """The limits of a workspace."""

    total_bytes: int = 64 * _MEGABYTE
    file_bytes: int = 16 * _MEGABYTE
    files: int = 20_000
    included_bytes: int = 64 * _MEGABYTE
    """For one file that the user includes."""


class Contents(Protocol):
    """The contents of a workspace that is being read."""

    def recall(self, path: PurePosixPath, status: os.stat_result) -> tuple[TreeFile, str] | None:
        """Return a file that is known from an earlier read, and why its content is withheld."""
        ...

    def add(
        self, path: PurePosixPath, status: os.stat_result, content: bytes, why: str, *, keep: bool
    ) -> TreeFile:
        """Return a file that was just read; `keep` says whether it belongs to the tree."""
        ...


class _InMemory(Contents):
    def recall(self, path: PurePosixPath, status: os.stat_result) -> None:
        del path, status

    def add(
        self, path: PurePosixPath, status: os.stat_result, content: bytes, why: str, *, keep: bool
    ) -> TreeFile:
        del path, why, keep
        return TreeFile(content, executable=bool(status.st_mode & stat.S_IXUSR))


def read_workspace(
    folder: Path,
    *,
    exclude: tuple[str, ...] = (),
    include: Iterable[PurePosixPath] = (),
    secret_names: Iterable[str] = (),
    caps: Caps | None = None,
    contents: Contents | None = None,
) -> Tree:
    """Read all files in a folder except version control, caches, environments and `exclude`.

    A pattern of `exclude` with a slash applies to whole paths, others apply to names at any depth;
    an excluded folder excludes its contents. Files that git ignores, likely secrets and too large
    files are withheld and listed in the tree, unless `include` contains them or their folder.
    Without `contents`, the tree has all contents in memory.

    Raises:
        UsageError: If it is not a folder, cannot be read, or exceeds `caps`.
    """
    # The folder itself may be a link: the user named it.
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        descriptor = os.open(folder, flags)
    except NotADirectoryError:
        raise UsageError(f"the workspace {str(folder)!r} is not a folder") from None
    except OSError as error:
        raise UsageError(
            f"the workspace {str(folder)!r} cannot be read: {error.strerror}"
        ) from error
    try:
        guard = build_guard(folder, include, secret_names)
        reader = _Reader(folder, exclude, caps or Caps(), guard, contents or _InMemory())
        reader.read_folder(descriptor, reader.guard.start())
    except OSError as error:
        # The file was removed meanwhile, or belongs to a special file system.
        raise UsageError(
            f"the workspace {str(folder)!r} cannot be read to its end: {error.strerror}"
        ) from error
    except RecursionError:
        raise UsageError(
            f"the workspace {str(folder)!r} is nested too deeply",
            hint="leave what is so deep out with --exclude, or name a smaller folder",
        ) from None
    finally:
        os.close(descriptor)
    return Tree(
        files=reader.files,
        links=tuple(sorted(reader.links)),
        withheld=tuple(sorted(reader.withheld, key=lambda one: one.path)),
    )


class _Reader:
    """The files of one workspace that were read so far."""

    def __init__(
        self,
        root: Path,
        exclude: tuple[str, ...],
        caps: Caps,
        guard: Guard,
        contents: Contents,
    ) -> None:
        self.guard = guard
        self._contents = contents
        self.files: dict[PurePosixPath, TreeFile] = {}
        self.links: list[PurePosixPath] = []
        self.withheld: list[Withheld] = []
        self._root = root
        self._exclude = exclude
        self._caps = caps
        self._total_bytes = 0

    def read_folder(self, descriptor: int, rules: FolderRules) -> None:
        with os.scandir(descriptor) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        names = {entry.name for entry in entries}
        if rules.path.parts and _is_reproducible(descriptor, names):
            return
        if RULES_FILE in names:
            rules = self.guard.ruled(rules, _beginning(descriptor, RULES_FILE, _MEGABYTE))
        for entry in entries:
            path = rules.path / entry.name
            if is_left_out(path, self._exclude):
                continue
            if entry.is_dir(follow_symlinks=False):
                inside = self.guard.enter(rules, path)
                if self.guard.is_closed(inside):
                    self.withheld.append(Withheld(path=path, why=inside.why, folder=True))
                    continue
                with self._opened(path, _IN_FOLDER, descriptor) as inner:
                    self.read_folder(inner, inside)
            elif entry.is_file(follow_symlinks=False):
                self._read_guarded(descriptor, rules, path)
            else:
                self.links.append(path)

    def _read_guarded(self, folder: int, rules: FolderRules, path: PurePosixPath) -> None:
        """Read a file, unless its name or its content marks it as a secret."""
        why = self.guard.of_file(rules, path)
        if why == BY_NAME and is_public(path, _beginning(folder, path.name, _MEGABYTE)):
            why = ""
        if why:
            self.withheld.append(Withheld(path=path, why=why))
            return
        screened = not self.guard.is_included(rules, path)
        status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            if self._is_too_large(path, status.st_size, screened=screened):
                return
            known = self._contents.recall(path, status)
            # A file that was withheld before has to be read to be included.
            if known is not None and (screened or not known[1]):
                self._take(path, *known)
                return
        with self._opened(path, _OF_FILE, folder) as file:
            self._read_file(file, path, screened=screened)

    @contextmanager
    def _opened(self, path: PurePosixPath, flags: int, folder: int) -> Generator[int]:
        try:
            descriptor = os.open(path.name, flags, dir_fd=folder)
        except OSError as error:
            raise UsageError(
                f"{str(self._root / path)!r} cannot be read: {error.strerror}",
                hint=_how_to_leave_out(path),
            ) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _read_file(self, descriptor: int, path: PurePosixPath, *, screened: bool) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.links.append(path)
            return
        if self._is_too_large(path, status.st_size, screened=screened):
            return
        content = _read_up_to(descriptor, self._most(screened=screened))
        why = secret_by_content(content, path)
        keep = not (screened and why)
        file = self._contents.add(path, status, content, why, keep=keep)
        self._take(path, file, "" if keep else why)

    def _most(self, *, screened: bool) -> int:
        caps = self._caps
        return caps.file_bytes if screened else min(caps.included_bytes, caps.total_bytes)

    def _is_too_large(self, path: PurePosixPath, size: int, *, screened: bool) -> bool:
        """Whether a file is too large, and therefore listed as withheld.

        Raises:
            UsageError: If it is included and does not fit, or there are too many files.
        """
        caps, most = self._caps, self._most(screened=screened)
        if size > most:
            if screened:
                # Listed with its size; `--include` reads it if it fits into the workspace.
                self.withheld.append(Withheld(path=path, why=f"too large: {_size_text(size)}"))
                return True
            raise UsageError(
                f"the file {str(path)!r} has {_size_text(size)}; "
                f"a workspace may have {_size_text(most)}",
                hint=_how_to_leave_out(path),
            )
        if len(self.files) >= caps.files:
            raise self._too_much(f"more than {caps.files:,} files", by_size=False)
        return False

    def _take(self, path: PurePosixPath, file: TreeFile, why: str) -> None:
        if why:
            self.withheld.append(Withheld(path=path, why=why))
            return
        self._total_bytes += file.size
        self.files[path] = file
        if self._total_bytes > self._caps.total_bytes:
            most = _size_text(self._caps.total_bytes)
            raise self._too_much(f"more than {most} in all", by_size=True)

    def _too_much(self, what: str, *, by_size: bool) -> UsageError:
        tops: Counter[str] = Counter()
        for path, file in self.files.items():
            tops[path.parts[0]] += file.size if by_size else 1
        largest = tops.most_common(_LARGEST_NAMED)
        named = ", ".join(
            f"{name} ({_size_text(amount) if by_size else f'{amount:,} files'})"
            for name, amount in largest
        )
        return UsageError(
            f"the workspace {str(self._root)!r} holds {what}; most of what was read: {named}",
            hint=_how_to_leave_out(PurePosixPath(largest[0][0])),
        )


def _beginning(folder: int, name: str, most: int) -> bytes:
    """Return the start of a regular file; empty if there is none."""
    with suppress(OSError):
        descriptor = os.open(name, _OF_FILE, dir_fd=folder)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return _read_up_to(descriptor, most)
        finally:
            os.close(descriptor)
    return b""


def _read_up_to(descriptor: int, most: int) -> bytes:
    """Read a file that may grow meanwhile."""
    pieces: list[bytes] = []
    while most and (piece := os.read(descriptor, min(most, _MEGABYTE))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def _is_reproducible(folder: int, names: set[str]) -> bool:
    """Return whether a folder is marked as a cache or an installed environment."""
    if _ENVIRONMENT_MARK in names:
        return True
    if _CACHE_TAG not in names:
        return False
    return _beginning(folder, _CACHE_TAG, len(_CACHE_SIGNATURE)) == _CACHE_SIGNATURE


def path_within(folder: Path, name: str) -> PurePosixPath | None:
    """Return the path in the folder that a user means; None if it does not exist there.

    Shells complete names relative to the current directory, so that is tried too.
    """
    root = folder.resolve()
    for candidate in (folder / name, Path(name)):
        if not candidate.is_symlink() and candidate.exists():
            place = candidate.resolve()
            if place.is_relative_to(root):
                return PurePosixPath(place.relative_to(root))
    return None


def included_paths(folder: Path, names: Iterable[str]) -> tuple[PurePosixPath, ...]:
    """Return the paths to read although the rules would withhold them.

    Raises:
        UsageError: If a name does not exist in the folder.
    """
    paths: list[PurePosixPath] = []
    for name in names:
        path = path_within(folder, name) if name.strip() else None
        if path is None:
            raise UsageError(
                f"--include {name!r} names nothing in {str(folder)!r}",
                hint="give a file or folder of the workspace, once for each",
            )
        paths.append(path)
    return tuple(paths)


def is_left_out(path: PurePosixPath, exclude: tuple[str, ...]) -> bool:
    """Return whether its own name or a pattern excludes a path; ignores parent folders."""
    name = path.name
    if name in LEFTOVER_NAMES or name.endswith(LEFTOVER_SUFFIXES) or name.startswith(STAGED):
        return True
    return any(
        _pattern(glob.strip("/")).fullmatch(str(path) if "/" in glob.strip("/") else name)
        for glob in exclude
    )


@cache
def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(translate(glob))


def _how_to_leave_out(path: PurePosixPath) -> str:
    return f"leave it out with --exclude '{path}', or name a smaller folder"


def _size_text(size: int) -> str:
    return f"{size / _MEGABYTE:.1f} MB" if size >= _MEGABYTE // 10 else f"{size:,} bytes"


def write_tree(folder: Path, tree: Tree) -> None:
    """Write all files of a tree into a new or empty folder.

    Raises:
        UsageError: If the folder is not empty, or a write fails.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(
                f"the folder {str(folder)!r} is not empty", hint="name one that does not exist yet"
            )
        for path, file in sorted(tree.files.items()):
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise UsageError(f"{str(path)!r} leads out of the folder")
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o777 if file.executable else 0o666
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(target, flags, mode), "wb") as written:  # noqa: PTH123 - by descriptor
                written.write(file.content)
    except OSError as error:
        raise UsageError(f"cannot write to {str(folder)!r}: {error.strerror}") from error
