"""Layers: workspaces of the user, each captured once as a read-only folder.

    layers/DIGEST/files/         the files of one state of a workspace; sandboxes open from it
    layers/DIGEST/listing.json   their paths, sizes, executable bits and SHA-256
    layers/DIGEST/users/         one file for each stored run that needs the layer
    layers/stats/NAME.json       what `lstat` said about the files of one workspace folder

A capture reads only files whose size, inode or times differ from the last one. Other files are hard
links to those of the earlier layer, never to files of the user: a program that edits a file in
place would change the layer. A layer gets its name only when it is complete and durable, and
a process that uses it holds a shared lock on its folder.
"""

import ctypes
import fcntl
import hashlib
import os
import shutil
import time
import weakref
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final

from assay.contracts.errors import JournalError
from assay.contracts.workspace import CapturedFiles, Tree, TreeFile, WorkspaceLayer
from assay.files import DRAFT, make_folder, try_lock, write_all, write_file
from assay.storage import withheld_files
from assay.storage.codec import fields_of, line_of
from assay.storage.read_workspace import Caps, Contents, read_workspace

DEFAULT_BYTES: Final = 8 << 30
LAYER_CAPS: Final = Caps(total_bytes=2 << 30, file_bytes=16 << 20, files=100_000)
"""The limits of a captured workspace: its contents are not held in memory."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_RECENT_NS: Final = 2_000_000_000
"""A file that changed so recently may change again without another time stamp."""
_BLOCK: Final = 4096
"""The space of a file in addition to its content, about."""

_Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, and the times of the last change of content and of metadata."""


class _Hold:
    """A shared lock on a layer, released when the last file of the layer is garbage."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        weakref.finalize(self, os.close, descriptor)


@dataclass(slots=True, eq=False)
class _Location:
    """The folder of a layer, which is known only after the capture."""

    folder: Path
    hold: _Hold | None = None


@dataclass(frozen=True, slots=True)
class _LayerContent:
    """Implements `StoredContent`."""

    location: _Location
    path: PurePosixPath
    sha256: str
    size: int

    def read(self) -> bytes:
        try:
            content = (self.location.folder / self.path).read_bytes()
        except OSError as error:
            raise JournalError(
                f"{str(self.path)!r} cannot be read from its layer: {error.strerror}"
            ) from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise JournalError(f"{str(self.path)!r} is not what it was when it was captured")
        return content


class LayerStore:
    """The layers below a state folder. Blocking: called from threads."""

    def __init__(
        self,
        state_dir: Path,
        *,
        most_bytes: int = DEFAULT_BYTES,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.clock_ns = clock_ns
        self._home = state_dir / "layers"
        self._most_bytes = most_bytes

    def capture(
        self,
        folder: Path,
        *,
        exclude: tuple[str, ...] = (),
        include: Iterable[PurePosixPath] = (),
        secret_names: Iterable[str] = (),
        caps: Caps = LAYER_CAPS,
    ) -> Tree:
        """Read a workspace and return its tree, whose files are those of a layer.

        The layer exists at least as long as a tree with its files does.

        Raises:
            UsageError: As for `read_workspace`.
            JournalError: If the layer cannot be written.
        """
        try:
            with self._locked():
                capture = _Capture(self, folder)
                try:
                    tree = read_workspace(
                        folder,
                        exclude=exclude,
                        include=include,
                        secret_names=secret_names,
                        caps=caps,
                        contents=capture,
                    )
                    return capture.finish(tree)
                finally:
                    capture.clean()
        except OSError as error:
            raise JournalError(
                f"the workspace cannot be copied to {str(self._home)!r}: {error.strerror}",
                hint="make room on that disk",
            ) from error

    def load(self, digest: str) -> Tree:
        """Return the tree of a layer, which exists at least as long as the tree.

        Raises:
            JournalError: If it is missing or damaged.
        """
        hold = self._hold(digest)
        if hold is None:
            raise JournalError(f"the layer {digest[:12]} is missing")
        location = _Location(hold.folder / "files", hold)
        try:
            listing = fields_of((hold.folder / "listing.json").read_bytes())
            files = {
                (path := PurePosixPath(name)): TreeFile(
                    _LayerContent(location, path, str(sha256), int(size)), bool(executable)
                )
                for name, (sha256, size, executable) in listing["files"].items()
            }
            links = tuple(map(PurePosixPath, listing["links"]))
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise JournalError(f"the layer {digest[:12]} is damaged") from error
        tree = _with_origin(Tree(files=files, links=links), location)
        if tree.digest != digest:
            raise JournalError(f"the layer {digest[:12]} is not what it was when it was captured")
        return tree

    def pin(self, digest: str, run: Path) -> None:
        """Keep a layer as long as the folder of a run exists. The layer must be in use."""
        name = hashlib.sha256(os.fsencode(run.absolute())).hexdigest()[:32]
        users = self._home / digest / "users"
        if not (users / name).exists():
            make_folder(users)
            write_file(users / name, os.fsencode(run.absolute()))

    def _hold(self, digest: str) -> _Hold | None:
        """Lock a layer against eviction; None if it does not exist."""
        folder = self._home / digest
        try:
            descriptor = os.open(folder, _FOLDER)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            os.utime(descriptor)
            # It may have been evicted before the lock.
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return _Hold(folder, os.dup(descriptor))
        except FileNotFoundError:
            pass
        finally:
            os.close(descriptor)
        return None

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Let one process at a time create and evict layers."""
        make_folder(self._home / "stats")
        descriptor = os.open(self._home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Incomplete layers of processes that were killed.
            for draft in self._home.glob(f"{DRAFT}*"):
                shutil.rmtree(draft, ignore_errors=True)
            yield
        finally:
            os.close(descriptor)

    def _evict(self) -> None:
        """Remove the layers that nothing has used for longest, until the rest fits."""
        sizes: list[tuple[float, int, Path]] = []
        for folder in self._home.iterdir():
            with suppress(OSError, KeyError, ValueError, TypeError, JournalError):
                size = int((folder / "size").read_bytes())
                sizes.append((folder.stat().st_mtime, size, folder))
        total = sum(size for _, size, _ in sizes)
        for _, size, folder in sorted(sizes):
            if total <= self._most_bytes:
                break
            if self._remove(folder):
                total -= size

    def _remove(self, folder: Path) -> bool:
        """Remove a layer, unless a process or a stored run uses it."""
        with suppress(OSError):
            for user in (folder / "users").iterdir():
                if Path(os.fsdecode(user.read_bytes())).exists():
                    return False
        descriptor = os.open(folder, _FOLDER)
        try:
            if not try_lock(descriptor):
                return False
            dead = folder.with_name(f"{DRAFT}{folder.name}")
            folder.rename(dead)
        finally:
            os.close(descriptor)
        shutil.rmtree(dead, ignore_errors=True)
        return True

    # Used by a capture, which has the lock.

    def stats_of(self, folder: Path) -> Path:
        """Return the file that says what is known about a workspace folder."""
        name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
        return self._home / "stats" / f"{name}.json"

    def hold(self, digest: str) -> _Hold | None:
        return self._hold(digest)

    def draft(self) -> Path:
        draft = self._home / f"{DRAFT}{os.getpid()}"
        (draft / "files").mkdir(parents=True)
        draft.chmod(0o700)
        return draft

    def publish(self, draft: Path, tree: Tree) -> _Hold:
        """Give a complete layer its name, and make room."""
        listing = {
            "files": {
                str(path): [file.sha256, file.size, file.executable]
                for path, file in tree.files.items()
            },
            "links": [str(link) for link in tree.links],
        }
        size = sum(file.size + _BLOCK for file in tree.files.values())
        (draft / "size").write_bytes(str(size).encode())
        (draft / "listing.json").write_bytes(line_of(listing))
        _sync(draft)
        target = self._home / tree.digest
        draft.rename(target)
        hold = self._hold(tree.digest)
        assert hold is not None  # noqa: S101 - for the type checker: only the lock's owner evicts
        self._evict()
        return hold


@dataclass(frozen=True, slots=True)
class _Known:
    """What an earlier capture found out about a file."""

    stamp: _Stamp
    sha256: str
    why: str
    """Why its content is withheld; empty if it is not."""


@dataclass(slots=True)
class _Capture(Contents):
    """One capture of a workspace."""

    store: LayerStore
    folder: Path
    known: dict[str, _Known] = field(default_factory=dict[str, _Known])
    found: dict[str, _Known] = field(default_factory=dict[str, _Known])
    earlier: _Hold | None = None
    """The layer that has the files of `known`."""
    started_ns: int = 0
    location: _Location = field(default_factory=lambda: _Location(Path()))
    draft: Path | None = None
    written: set[PurePosixPath] = field(default_factory=set[PurePosixPath])

    def __post_init__(self) -> None:
        self.started_ns = self.store.clock_ns()
        with suppress(OSError, JournalError, KeyError, ValueError, TypeError):
            stats = fields_of(self.store.stats_of(self.folder).read_bytes())
            if stats["rules"] != _rules_digest():
                return
            self.earlier = self.store.hold(stats["layer"])
            if self.earlier is not None:
                self.known = {
                    path: _Known(tuple(stamp), sha256, why)
                    for path, (stamp, sha256, why) in stats["files"].items()
                }

    def recall(self, path: PurePosixPath, status: os.stat_result) -> tuple[TreeFile, str] | None:
        """Return an unchanged file, and why it is withheld."""
        known = self.known.get(str(path))
        if known is None or known.stamp != _stamp_of(status):
            return None
        self.found[str(path)] = known
        return self._file(path, known, status), known.why

    def add(
        self, path: PurePosixPath, status: os.stat_result, content: bytes, why: str, *, keep: bool
    ) -> TreeFile:
        """Return a file that was just read, and store its content if it belongs to the tree."""
        known = _Known(_stamp_of(status), hashlib.sha256(content).hexdigest(), why)
        if max(status.st_mtime_ns, status.st_ctime_ns) < self.started_ns - _RECENT_NS:
            self.found[str(path)] = known
        file = self._file(path, known, status, size=len(content))
        earlier = self.known.get(str(path))
        if keep and (earlier is None or earlier.why or earlier.sha256 != known.sha256):
            self._write(path, content, executable=file.executable)
        return file

    def _file(
        self, path: PurePosixPath, known: _Known, status: os.stat_result, size: int = -1
    ) -> TreeFile:
        size = status.st_size if size < 0 else size
        content = _LayerContent(self.location, path, known.sha256, size)
        return TreeFile(content, executable=bool(status.st_mode & 0o100))

    def _write(self, path: PurePosixPath, content: bytes, *, executable: bool) -> None:
        if self.draft is None:
            self.draft = self.store.draft()
        target = self._target(path)
        descriptor = os.open(target, _NEW, 0o600)
        try:
            write_all(descriptor, content)
            os.fchmod(descriptor, 0o755 if executable else 0o644)
        finally:
            os.close(descriptor)
        self.written.add(path)

    def _target(self, path: PurePosixPath) -> Path:
        assert self.draft is not None  # noqa: S101 - for the type checker
        target = self.draft / "files" / path
        make_public_folder(target.parent)
        return target

    def finish(self, tree: Tree) -> Tree:
        """Return the tree of the layer, which is written unless it exists."""
        if not tree.files:
            return tree
        hold = self.store.hold(tree.digest)
        if hold is None:
            self.draft = self.draft or self.store.draft()
            for path, file in tree.files.items():
                if path not in self.written:
                    self._link(path, file)
            hold = self.store.publish(self.draft, tree)
            self.draft = None
        self.location.hold, self.location.folder = hold, hold.folder / "files"
        self._remember(tree.digest)
        return _with_origin(tree, self.location)

    def _link(self, path: PurePosixPath, file: TreeFile) -> None:
        assert self.earlier is not None  # noqa: S101 - for the type checker: it has the file
        source, target = self.earlier.folder / "files" / path, self._target(path)
        mode = 0o755 if file.executable else 0o644
        if source.stat().st_mode & 0o777 == mode:
            with suppress(OSError):
                target.hardlink_to(source)
                return
        shutil.copyfile(source, target)
        target.chmod(mode)

    def _remember(self, digest: str) -> None:
        if (
            digest == (self.earlier.folder.name if self.earlier else "")
            and self.found == self.known
        ):
            return
        stats = {
            "rules": _rules_digest(),
            "layer": digest,
            "files": {path: (one.stamp, one.sha256, one.why) for path, one in self.found.items()},
        }
        write_file(self.store.stats_of(self.folder), line_of(stats))

    def clean(self) -> None:
        if self.draft is not None:
            shutil.rmtree(self.draft, ignore_errors=True)


def make_public_folder(folder: Path) -> None:
    """Create a folder and its parents with the mode that programs in a sandbox see."""
    missing: list[Path] = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir()
        one.chmod(0o755)


def _with_origin(tree: Tree, location: _Location) -> Tree:
    layer = WorkspaceLayer(digest=tree.digest, folder=location.folder.absolute())
    return replace(tree, origin=CapturedFiles(layer=layer, files=tree.files))


def _stamp_of(status: os.stat_result) -> _Stamp:
    times = status.st_mtime_ns, status.st_ctime_ns
    return (status.st_dev, status.st_ino, status.st_size, *times)


@cache
def _rules_digest() -> str:
    """Identify the rules by which content is withheld: known results are void if they change."""
    return hashlib.sha256(Path(withheld_files.__file__).read_bytes()).hexdigest()


def _sync(folder: Path) -> None:
    """Make everything on the disk of a folder durable; faster than file by file."""
    descriptor = os.open(folder, _FOLDER)
    try:
        _load_syncfs()(descriptor)
    finally:
        os.close(descriptor)


@cache
def _load_syncfs() -> Callable[[int], Any]:
    with suppress(OSError, AttributeError):
        return ctypes.CDLL(None).syncfs
    return lambda _: os.sync()
