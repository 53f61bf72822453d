"""Package store: all layers of this user, created once, found in milliseconds, limited in size.

layers/KEY      one layer; processes that use it hold a shared lock on its manifest
requests/HASH   the layer of a request, and the time of the request
locks/HASH      locked by the process that creates the layer of a request
making/…        layers in progress; entries without an owner are leftovers
wheels          uv's downloads
built/SHA256    a wheel that was built of the source distribution with this hash
"""

import configparser
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL  # noqa: TID251 - a constant for anyio's processes
from typing import Any, Final

import anyio
from anyio import to_thread

from assay.contracts.errors import PackageError, UsageError
from assay.contracts.execution import EditableProject
from assay.sandbox.packages.built import BuiltWheels
from assay.sandbox.packages.requirements import (
    Requirement,
    canonical_name,
    parse_requirements,
)
from assay.sandbox.packages.resolver import IndexUnreachableError, Pin, Resolver
from assay.sandbox.packages.target import Target

CONTENT: Final = "site"
"""The folder of a layer that a sandbox sees."""
MANIFEST: Final = "manifest.json"

_FORMAT: Final = 2
_COMPILE_WITHIN_S: Final = 300.0
_INTERPRETER: Final = "#!/usr/bin/env python3\n"
_LONGEST_SHEBANG: Final = 512
_SITE: Final = '''"""Hide the interpreter's packages: the project's environment is complete."""

import sys

sys.path[:] = [path for path in sys.path if not path.endswith("/site-packages")]
'''
"""The module `sitecustomize`, which each interpreter imports at its start."""
_NOT_COMMANDS: Final = re.compile(r"python[\d.]*|(?:ba|da|z)?sh|env|node|go|cargo")
"""Commands of the sandbox that no package may replace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer on disk."""

    key: str
    folder: Path
    """The folder that a sandbox sees."""
    pins: tuple[str, ...]
    """All its packages, `name==version`."""
    lines: tuple[str, ...] = ()
    """The same with the hashes of their files, `name==version --hash=sha256:…`."""
    python: str
    size_bytes: int
    made_at: float
    used_at: float


def layer_key(
    pins: Sequence[Pin],
    target: Target,
    project: EditableProject | None = None,
    *,
    complete: bool = False,
) -> str:
    """Return the name of a layer: a digest of everything that determines its contents."""
    content: list[object] = [_FORMAT, target.python, target.platform]
    content += [sorted(pin.line for pin in pins), *_words_of(project)]
    content += ["complete"] if complete else []
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _words_of(project: EditableProject | None) -> list[str]:
    """Return what a layer contains of a project."""
    if project is None:
        return []
    return [project.name, project.version, *project.requires, project.entry_points]


async def install(
    folder: Path,
    pins: Sequence[Pin],
    target: Target,
    *,
    max_bytes: int,
    project: EditableProject | None = None,
    complete: bool = False,
) -> None:
    """Turn unpacked wheels into a layer: cleaned, compiled, read-only and with a manifest.

    A project gets the metadata that an editable install would write. Programs that see a complete
    layer do not see the packages of Assay's own environment.

    Raises:
        PackageError: If it contains more than allowed, or forbidden files.
    """
    content = folder / CONTENT
    if project is not None:
        _write_metadata(content, project)
    if complete and (content / "_pytest").is_dir():
        (content / "sitecustomize.py").write_text(_SITE)
    _rewrite_scripts(content)
    await _compile(content, target)
    size_bytes = _close(content, max_bytes)
    manifest = {
        "pins": [str(pin) for pin in pins],
        "lines": [pin.line for pin in pins],
        "python": target.python,
        "platform": target.platform,
        "size_bytes": size_bytes,
        "made_at": time.time(),
    }
    with (folder / MANIFEST).open("w") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())


def read_layer(folder: Path) -> Layer | None:
    """Return the layer in this folder; None if there is no complete one."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        return Layer(
            key=folder.name,
            folder=folder / CONTENT,
            pins=tuple(manifest["pins"]),
            lines=tuple(manifest.get("lines", manifest["pins"])),
            python=manifest["python"],
            size_bytes=manifest["size_bytes"],
            made_at=manifest["made_at"],
            used_at=path.stat().st_mtime,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_metadata(content: Path, project: EditableProject) -> None:
    """Write the metadata of a project, in place of that of an installed copy."""
    for path in content.glob("*.dist-info"):
        if canonical_name(path.name.removesuffix(".dist-info").rpartition("-")[0]) == project.name:
            shutil.rmtree(path)
    folder = content / f"{project.name.replace('-', '_')}-{project.version}.dist-info"
    folder.mkdir()
    fields = [("Metadata-Version", "2.1"), ("Name", project.name), ("Version", project.version)]
    fields += [("Requires-Dist", text) for text in project.requires]
    texts = {
        "METADATA": "".join(f"{name}: {value}\n" for name, value in fields),
        "INSTALLER": "assay\n",
        "RECORD": "",
        "entry_points.txt": project.entry_points,
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def _rewrite_scripts(content: Path) -> None:
    """Make commands use the sandbox's interpreter, which is the first on its path."""
    folder = content / "bin"
    for name, module, function in _entry_points(content):
        folder.mkdir(exist_ok=True)
        first = function.partition(".")[0]
        text = f"import sys\nfrom {module} import {first}\nsys.exit({function}())\n"
        (folder / name).write_text(_INTERPRETER + text)
        (folder / name).chmod(0o755)
    for path in folder.glob("*"):
        if _NOT_COMMANDS.fullmatch(path.name):
            # The folder is the first on the path of programs.
            path.unlink()
        elif path.is_file() and not path.is_symlink():
            _repoint(path)


def _entry_points(content: Path) -> Iterator[tuple[str, str, str]]:
    for path in sorted(content.glob("*.dist-info/entry_points.txt")):
        parser = configparser.RawConfigParser(delimiters=("=",))
        parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - the documented way to keep upper case
        try:
            parser.read(path, encoding="utf-8")
        except (UnicodeDecodeError, configparser.Error):
            continue
        for section in ("console_scripts", "gui_scripts"):
            for name, place in parser.items(section) if parser.has_section(section) else ():
                module, _, function = place.partition("[")[0].strip().partition(":")
                words = (*module.split("."), *function.split("."))
                if "/" not in name and name not in {"", ".", ".."} and _all_names(words):
                    yield name, module, function


def _all_names(words: Sequence[str]) -> bool:
    return all(word.strip().isidentifier() for word in words)


def _repoint(path: Path) -> None:
    with path.open("rb") as file:
        first = file.readline(_LONGEST_SHEBANG)
        if not (first.startswith(b"#!") and b"python" in first and first.endswith(b"\n")):
            return
        rest = file.read()
    path.write_bytes(_INTERPRETER.encode() + rest)
    path.chmod(0o755)


async def _compile(content: Path, target: Target) -> None:
    """Compile the sources once for all programs. This reads them and runs none of them."""
    if target.interpreter is None:
        return
    arguments = ["-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash", str(content)]
    with anyio.move_on_after(_COMPILE_WITHIN_S):
        # Files that do not compile stay as they are: some are for other versions of Python.
        await anyio.run_process(
            [target.interpreter, "-I", "-S", *arguments],
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
            check=False,
            cwd="/",
            env={},
        )


def _close(content: Path, max_bytes: int) -> int:
    """Remove all write permissions and return the total size."""
    size_bytes = 0
    for folder, _, names in os.walk(content, topdown=False):
        for name in names:
            path = Path(folder, name)
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                raise PackageError(f"{name!r} of a package is neither a file nor a folder")
            size_bytes += status.st_size
            path.chmod(0o555 if status.st_mode & 0o111 else 0o444)
        Path(folder).chmod(0o555)
    if size_bytes > max_bytes:
        raise PackageError(
            f"the packages take up {size_bytes >> 20} MB, and {max_bytes >> 20} MB is all there is",
            hint="raise sandbox.packages_mb, or ask for less",
        )
    return size_bytes


LAYERS: Final = "layers"
_DAY_S: Final = 86400.0
_LOOK_AGAIN_S: Final = 0.05


class PackageStore:
    """The layers in one folder."""

    def __init__(self, folder: Path, *, environment: Mapping[str, str], max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self.built = BuiltWheels(folder / "built")
        self.resolver = Resolver(
            wheels=folder / "wheels", built=self.built, environment=environment
        )

    @property
    def layers_folder(self) -> Path:
        return self._folder / LAYERS

    def make_folders(self) -> None:
        """Create the folders of the store.

        Raises:
            UsageError: If they cannot be created.
        """
        try:
            for name in (LAYERS, "requests", "locks", "making", "wheels"):
                (self._folder / name).mkdir(parents=True, exist_ok=True)
            # Accessible to the users that programs run as, independent of the umask.
            self.layers_folder.chmod(0o755)
        except OSError as error:
            raise UsageError(
                f"no place for packages in {str(self._folder)!r}: {error.strerror}",
                hint="set sandbox.packages_dir to a folder that can be written to",
            ) from error

    @asynccontextmanager
    async def open_layer(
        self,
        packages: Sequence[str],
        target: Target,
        *,
        project: EditableProject | None = None,
        constraints: Sequence[str] = (),
    ) -> AsyncGenerator[Layer]:
        """Return the layer for a request; no process removes it while it is open.

        `constraints` limit the versions of packages that other packages need.

        Raises:
            PackageError: If a package is not available.
            UsageError: If the store has no folder for it.
            MissingExtraError: If uv is not installed, and it is needed.
        """
        request = _Request(
            asked=parse_requirements(packages),
            constraints=parse_requirements(constraints),
            target=target,
            project=project,
        )
        with contextlib.ExitStack() as held:
            layer = self._known(request, held)
            if layer is None:
                layer = await self._make(request, held)
            yield layer

    def layers(self) -> tuple[Layer, ...]:
        """Return every layer, the most recently used first."""
        folders = self.layers_folder.iterdir() if self.layers_folder.is_dir() else ()
        found = [layer for folder in folders if (layer := read_layer(folder)) is not None]
        return tuple(sorted(found, key=lambda layer: layer.used_at, reverse=True))

    def remove(self, layer: Layer) -> bool:
        """Remove a layer unless it is in use."""
        folder = self.layers_folder / layer.key
        with contextlib.ExitStack() as held:
            if not _hold(folder / MANIFEST, fcntl.LOCK_EX, held):
                return False
            away = self._folder / "making" / f"removed-{layer.key}-{os.getpid()}"
            with suppress(OSError):
                folder.rename(away)
        _remove(away)
        return not folder.exists()

    def clean(self) -> tuple[Layer, ...]:
        """Remove all unused layers and their downloads; returns the removed layers."""
        removed = tuple(layer for layer in self.layers() if self.remove(layer))
        for name in ("wheels", "requests", "built"):
            _remove(self._folder / name)
        self._sweep()
        return removed

    def _known(
        self, request: "_Request", held: contextlib.ExitStack, *, stale: bool = False
    ) -> Layer | None:
        """Look a request up. A request without exact versions expires after a day."""
        path = self._folder / "requests" / request.name
        try:
            entry: dict[str, Any] = json.loads(path.read_text())
            key, at = str(entry["layer"]), float(entry["at"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        lasting = stale or all(requirement.exact for requirement in request.asked)
        if not lasting and not 0 <= time.time() - at < _DAY_S:
            return None
        return self._take(key, held)

    def _take(self, key: str, held: contextlib.ExitStack) -> Layer | None:
        folder = self.layers_folder / key
        if "/" in key or not _hold(folder / MANIFEST, fcntl.LOCK_SH, held):
            return None
        with suppress(OSError):
            os.utime(folder / MANIFEST)
        return read_layer(folder)

    async def _make(self, request: "_Request", held: contextlib.ExitStack) -> Layer:
        self.make_folders()
        async with _turn(self._folder / "locks" / request.name):
            if layer := self._known(request, held):
                return layer  # another process created it meanwhile
            with self._open_workbench() as bench:
                try:
                    key = await self._build(request, bench)
                except IndexUnreachableError as error:
                    if layer := self._known(request, held, stale=True):
                        return layer
                    raise PackageError(
                        f"the package index cannot be reached: {error}",
                        index_unreachable=True,
                        hint="check the network, and the index that pip is set up to use",
                    ) from error
            layer = self._take(key, held)
            if layer is None:
                raise PackageError("a layer was removed as it was made", hint="try again")
            self._remember(request.name, key)
        await to_thread.run_sync(self._make_room)
        return layer

    async def _build(self, request: "_Request", bench: Path) -> str:
        target, project = request.target, request.project
        asked, constraints = request.asked, request.constraints
        pins: tuple[Pin, ...] = ()
        if asked:
            pins = await self.resolver.resolve(asked, target, bench, constraints=constraints)
        key = layer_key(pins, target, project, complete=request.complete)
        place = self.layers_folder / key
        if read_layer(place) is not None:
            return key
        made = _make_empty(bench / "layer")
        await self.resolver.unpack(pins, target, bench, made / CONTENT)
        await install(
            made,
            pins,
            target,
            max_bytes=self._max_bytes,
            project=project,
            complete=request.complete,
        )
        try:
            made.rename(place)
        except OSError:
            # Another request with the same layer was faster.
            if read_layer(place) is None:
                raise
        return key

    @contextmanager
    def _open_workbench(self) -> Generator[Path]:
        self._sweep()
        bench = Path(tempfile.mkdtemp(prefix="bench-", dir=self._folder / "making"))
        with contextlib.ExitStack() as held:
            (bench / "owner").touch()
            _hold(bench / "owner", fcntl.LOCK_EX, held)
            try:
                yield bench
            finally:
                _remove(bench)

    def _sweep(self) -> None:
        """Remove the leftovers of processes that were killed while creating a layer."""
        making = self._folder / "making"
        for path in making.iterdir() if making.is_dir() else ():
            with contextlib.ExitStack() as held:
                owned = (path / "owner").exists()
                fresh = not owned and _age_s(path) < _DAY_S
                if not fresh and (not owned or _hold(path / "owner", fcntl.LOCK_EX, held)):
                    _remove(path)

    def _remember(self, name: str, key: str) -> None:
        path = self._folder / "requests" / name
        fresh = path.with_name(f"{name}.{os.getpid()}")
        fresh.write_text(json.dumps({"layer": key, "at": time.time()}))
        fresh.rename(path)

    def _make_room(self) -> None:
        """Remove the least recently used layers until the rest fits the limit."""
        used_bytes = 0
        for layer in self.layers():
            used_bytes += layer.size_bytes
            if used_bytes > self._max_bytes and self.remove(layer):
                used_bytes -= layer.size_bytes
        wheels = self._folder / "wheels"
        if _size_bytes(wheels) > self._max_bytes:
            _remove(wheels)


def _make_empty(folder: Path) -> Path:
    (folder / CONTENT).mkdir(parents=True)
    # Accessible to the users that programs run as, independent of the umask.
    folder.chmod(0o755)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What a caller asked for."""

    asked: tuple[Requirement, ...]
    constraints: tuple[Requirement, ...]
    target: Target
    project: EditableProject | None

    @property
    def complete(self) -> bool:
        """Whether this is the environment of a project, with all that it needs."""
        hashed = bool(self.asked) and all(requirement.hashes for requirement in self.asked)
        return hashed or self.project is not None

    @property
    def name(self) -> str:
        """A digest under which the store remembers the layer."""
        target = self.target
        words = [*map(str, self.asked), target.python, target.platform, *target.present]
        words += [*(f"-c {one}" for one in self.constraints), *_words_of(self.project)]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]


def _hold(path: Path, kind: int, held: contextlib.ExitStack, *, flags: int = 0) -> bool:
    """Lock a file until `held` closes; False if it is gone or locked by another process."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        # Another process may have removed it between the two calls.
        there = os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        there = False
    if not there:
        os.close(descriptor)
        return False
    held.callback(os.close, descriptor)
    return True


@asynccontextmanager
async def _turn(path: Path) -> AsyncGenerator[None]:
    """Wait for the lock on a file."""
    with contextlib.ExitStack() as held:
        while not _hold(path, fcntl.LOCK_EX, held, flags=os.O_CREAT):  # noqa: ASYNC110 - there are no events between processes
            await anyio.sleep(_LOOK_AGAIN_S)
        yield


def _remove(folder: Path) -> None:
    """Remove a folder that may contain read-only folders."""
    for place, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(place, 0o700)  # noqa: PTH101 - as `walk` gives it
    shutil.rmtree(folder, ignore_errors=True)


def _age_s(path: Path) -> float:
    with suppress(OSError):
        return time.time() - path.lstat().st_mtime
    return 0.0


def _size_bytes(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 - many, and quick
    return total
