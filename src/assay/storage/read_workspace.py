"""Reads a host folder into a tree: regular files only, without following links."""

import os
import re
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

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


@dataclass(slots=True, kw_only=True)
class _Reading:
    root: Path
    exclude: tuple[str, ...]
    caps: Caps
    guard: Guard
    files: dict[PurePosixPath, TreeFile] = field(default_factory=dict[PurePosixPath, TreeFile])
    links: list[PurePosixPath] = field(default_factory=list[PurePosixPath])
    withheld: list[Withheld] = field(default_factory=list[Withheld])
    total_bytes: int = 0


def read_workspace(
    folder: Path,
    *,
    exclude: tuple[str, ...] = (),
    include: Iterable[PurePosixPath] = (),
    caps: Caps | None = None,
) -> Tree:
    """Read all files in a folder except version control, caches, environments and `exclude`.

    A pattern of `exclude` with a slash applies to whole paths, others apply to names at any depth;
    an excluded folder excludes its contents. Files that git ignores and likely secrets are withheld
    and listed in the tree, unless `include` contains them or their folder.

    Raises:
        UsageError: If it is not a folder, cannot be read, or exceeds `caps`.
    """
    guard = build_guard(folder, include)
    reading = _Reading(root=folder, exclude=exclude, caps=caps or Caps(), guard=guard)
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
        _read_folder(reading, descriptor, guard.start())
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
        files=reading.files,
        links=tuple(sorted(reading.links)),
        withheld=tuple(sorted(reading.withheld, key=lambda one: one.path)),
    )


def _read_folder(reading: _Reading, descriptor: int, place: FolderRules) -> None:
    with os.scandir(descriptor) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    names = {entry.name for entry in entries}
    if place.path.parts and _holds_what_can_be_made_again(descriptor, names):
        return
    if RULES_FILE in names:
        place = reading.guard.ruled(place, _beginning(descriptor, RULES_FILE, _MEGABYTE))
    for entry in entries:
        path = place.path / entry.name
        if is_left_out(path, reading.exclude):
            continue
        if entry.is_dir(follow_symlinks=False):
            inside = reading.guard.enter(place, path)
            if reading.guard.is_closed(inside):
                reading.withheld.append(Withheld(path=path, why=inside.why, folder=True))
                continue
            with _opened(reading, path, _IN_FOLDER, descriptor) as inner:
                _read_folder(reading, inner, inside)
        elif entry.is_file(follow_symlinks=False):
            _guarded(reading, descriptor, place, path)
        else:
            reading.links.append(path)


def _guarded(reading: _Reading, folder: int, place: FolderRules, path: PurePosixPath) -> None:
    """Read a file, unless its name or its content marks it as a secret."""
    why = reading.guard.of_file(place, path)
    if why == BY_NAME and is_public(path, _beginning(folder, path.name, _MEGABYTE)):
        why = ""
    if why:
        reading.withheld.append(Withheld(path=path, why=why))
        return
    with _opened(reading, path, _OF_FILE, folder) as file:
        _read_file(reading, file, path, screened=not reading.guard.is_included(place, path))


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


@contextmanager
def _opened(reading: _Reading, path: PurePosixPath, flags: int, folder: int) -> Generator[int]:
    try:
        descriptor = os.open(path.name, flags, dir_fd=folder)
    except OSError as error:
        raise UsageError(
            f"{str(reading.root / path)!r} cannot be read: {error.strerror}",
            hint=_how_to_leave_out(path),
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_file(reading: _Reading, descriptor: int, path: PurePosixPath, *, screened: bool) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        reading.links.append(path)
        return
    most = reading.caps.file_bytes
    if status.st_size > most:
        raise UsageError(
            f"the file {str(path)!r} has {_in_words(status.st_size)}; "
            f"a file of a workspace may have {_in_words(most)}",
            hint=_how_to_leave_out(path),
        )
    if len(reading.files) >= reading.caps.files:
        raise _too_much(reading, f"more than {reading.caps.files:,} files", by_size=False)
    content = _read_up_to(descriptor, most)
    if screened and (why := secret_by_content(content, path)):
        reading.withheld.append(Withheld(path=path, why=why))
        return
    reading.total_bytes += len(content)
    reading.files[path] = TreeFile(content, executable=bool(status.st_mode & stat.S_IXUSR))
    if reading.total_bytes > reading.caps.total_bytes:
        most_in_words = _in_words(reading.caps.total_bytes)
        raise _too_much(reading, f"more than {most_in_words} in all", by_size=True)


def _read_up_to(descriptor: int, most: int) -> bytes:
    """Read a file that may grow meanwhile."""
    pieces: list[bytes] = []
    while most and (piece := os.read(descriptor, min(most, _MEGABYTE))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def _holds_what_can_be_made_again(folder: int, names: set[str]) -> bool:
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


def _too_much(reading: _Reading, what: str, *, by_size: bool) -> UsageError:
    tops: dict[str, int] = {}
    for path, file in reading.files.items():
        top = path.parts[0]
        tops[top] = tops.get(top, 0) + (len(file.content) if by_size else 1)
    largest = sorted(tops.items(), key=lambda item: -item[1])[:_LARGEST_NAMED]
    named = ", ".join(
        f"{name} ({_in_words(amount) if by_size else f'{amount:,} files'})"
        for name, amount in largest
    )
    return UsageError(
        f"the workspace {str(reading.root)!r} holds {what}; most of what was read: {named}",
        hint=_how_to_leave_out(PurePosixPath(largest[0][0])),
    )


def _how_to_leave_out(path: PurePosixPath) -> str:
    return f"leave it out with --exclude '{path}', or name a smaller folder"


def _in_words(size: int) -> str:
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
            target = folder / _inside(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o777 if file.executable else 0o666
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(target, flags, mode), "wb") as written:  # noqa: PTH123 - by descriptor
                written.write(file.content)
    except OSError as error:
        raise UsageError(f"cannot write to {str(folder)!r}: {error.strerror}") from error


def _inside(path: PurePosixPath) -> PurePosixPath:
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise UsageError(f"{str(path)!r} leads out of the folder")
    return path
