"""Provision of the image `assay-python`: contents, tags, builds, and images with packages.

Libraries and service are separate image layers, so that a new version of Assay does not need
another half gigabyte of libraries. The image is found or built once, one process at a time.
Containers mount nothing of the host, so the packages of a sandbox become another image layer. The
Docker engine keeps it, and the next sandbox with the same packages starts immediately.
"""

import fcntl
import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import anyio
import anyio.from_thread
import anyio.to_thread

from assay.contracts.errors import SandboxUnavailableError, UsageError
from assay.contracts.execution import SandboxSpec
from assay.sandbox.docker.container import ask_image
from assay.sandbox.docker.engine import Engine, EngineError
from assay.sandbox.docker.entrypoint import SHIPPED_LAYER, SHIPPED_LAYERS
from assay.sandbox.docker.labels import IMAGE_LABEL
from assay.sandbox.packages.store import PackageStore
from assay.sandbox.packages.target import Target
from assay.settings.load import SandboxSettings
from assay.settings.sections import DockerSettings

REPOSITORY: Final = "assay-python"
PACKAGES: Final = (
    "anyio>=4.12",
    "matplotlib>=3.9",
    "numpy>=2.0",
    "openpyxl>=3.1",
    "pandas>=2.2",
    "protobuf>=7.35.1",
    "pyarrow>=21",
    "pytest>=9.0",
    "scikit-learn>=1.5",
    "seaborn>=0.13",
    "uv>=0.13",
    "xlrd>=2.0.1",
)
"""The packages that programs find installed and that the service needs."""
_VENV: Final = "/opt/assay/venv"
_SERVICE: Final = "/opt/assay/service"
_PYTHON: Final = f"{_VENV}/bin/python3"
_COMPILE: Final = f"{_PYTHON} -I -m compileall -qq --invalidation-mode unchecked-hash"
_FORMAT: Final = 1
_LONGEST_KEY: Final = 16
_OLDEST: Final = (3, 11)
_LOOK_AGAIN_S: Final = 0.2
_LAST_LINES: Final = 8

_SERVICE_PARTS: Final = ("__init__.py", "asyncx", "contracts", "sandbox")
"""The parts of the package `assay` that run in the container."""

# `-I`: the service never imports a file that a program wrote.
_ASK_SERVICE: Final = f"import sys; sys.path.insert(0, {_SERVICE!r}); "
SERVICE_COMMAND: Final = (
    *(_PYTHON, "-I", "-c"),
    _ASK_SERVICE + "from assay.sandbox.docker.entrypoint import main; main()",
)
_ABOUT_TARGET: Final = _ASK_SERVICE + (
    "import json; from dataclasses import asdict; "
    "from assay.sandbox.packages.target import own_target; "
    "print(json.dumps(asdict(own_target(json.loads(sys.argv[1])))))"
)
_ABOUT_PYTHON: Final = (
    "import json, platform, sys; print(json.dumps({'version': sys.version_info[:2], "
    "'machine': platform.machine(), 'libc': platform.libc_ver()[0]}))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePython:
    """The interpreter of a base image."""

    version: str
    """`3.11`."""
    machine: str
    libc: str

    @property
    def platform(self) -> str:
        """The platform name that uv uses."""
        libc = "gnu" if self.libc == "glibc" else "musl"
        return f"{self.machine}-unknown-linux-{libc}"


Files = Iterable[tuple[str, Path]]
"""Files of a build context: the path there, and the source."""
OnNotice = Callable[[str], None]


def packages_dockerfile(base: str, python: ImagePython) -> str:
    """Install the libraries on a base image, compile them and check that they can be imported."""
    site = f"{_VENV}/lib/python{python.version}/site-packages"
    return f"""FROM {base}
LABEL {IMAGE_LABEL}=packages
USER 0:0
RUN python3 -m venv --without-pip {_VENV}
COPY site {site}
COPY scripts {_VENV}/bin
COPY bin /usr/local/bin
RUN {_COMPILE} -j 0 {site}
RUN {_PYTHON} -I -c "import anyio, google.protobuf, openpyxl, pandas, pyarrow, seaborn, sklearn"
"""


def service_dockerfile(packages_image: str) -> str:
    """Add the service to the image with the libraries."""
    return f"""FROM {packages_image}
LABEL {IMAGE_LABEL}=service
COPY service {_SERVICE}
RUN {_COMPILE} {_SERVICE}
RUN mkdir -p /app /run/assay /opt/assay/layers
ENV PATH={_VENV}/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/app
WORKDIR /app
USER 65532:65532
CMD ["python3"]
"""


def packages_tag(base_id: str, packages: Sequence[str]) -> str:
    """Return the tag of the library image: a digest of everything known before the download."""
    words = [_FORMAT, base_id, sorted(packages), packages_dockerfile("", _ANY_PYTHON)]
    return f"{REPOSITORY}:packages-{_key(json.dumps(words).encode())}"


def service_tag(packages_image_tag: str, package: Path) -> str:
    """Return the tag of the complete image: a digest of everything that determines its contents."""
    digest = hashlib.sha256(f"{packages_image_tag}\n{service_dockerfile('')}".encode())
    for name, path in service_files(package):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"{REPOSITORY}:{digest.hexdigest()[:_LONGEST_KEY]}"


_ANY_PYTHON: Final = ImagePython(version="", machine="", libc="")


def _key(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_LONGEST_KEY]


def service_files(package: Path) -> Iterator[tuple[str, Path]]:
    """Yield the sources that run in the container."""
    for part in _SERVICE_PARTS:
        found = package / part
        paths = [found] if found.is_file() else sorted(found.rglob("*"))
        for path in paths:
            if path.suffix in {".py", ".toml"} and path.is_file():
                yield f"service/assay/{path.relative_to(package)}", path


def packages_files(layer: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of the first image: libraries, build commands and uv."""
    for inner, path in _files_below(layer):
        if inner.parts[0] != "bin":
            yield f"site/{inner}", path
        elif path.name in {"uv", "uvx"}:
            # Below /usr, where every program finds it.
            yield f"bin/{path.name}", path
        else:
            yield f"scripts/{path.name}", path


def _files_below(folder: Path) -> Iterator[tuple[Path, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder), path


def write_context(
    dockerfile: str, files: Files, into: BinaryIO, *, folders: Sequence[str] = ()
) -> None:
    """Write a build context: a Dockerfile, files, and folders that may have none."""
    with tarfile.open(fileobj=into, mode="w") as archive:
        content = dockerfile.encode()
        archive.addfile(_entry("Dockerfile", len(content), 0o644), io.BytesIO(content))
        for name in folders:
            folder = _entry(name, 0, 0o755)
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
        for name, path in files:
            status = path.stat()
            mode = 0o755 if status.st_mode & 0o111 else 0o644
            with path.open("rb") as source:
                archive.addfile(_entry(name, status.st_size, mode), source)


def _entry(name: str, size: int, mode: int) -> tarfile.TarInfo:
    """No times and owners of this machine: the same content gives the same image."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, mode
    return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """The image to use, and whether it exists."""

    tag: str
    id: str | None
    """Its digest; None if it has to be built first."""


async def find_image(engine: Engine, settings: DockerSettings) -> ImageFacts:
    """Return the image to use, without building or downloading anything."""
    base_id = await engine.image_id(settings.base_image)
    if base_id is None:
        return ImageFacts(tag="", id=None)
    tag = service_tag(packages_tag(base_id, (*PACKAGES, *settings.packages)), _package())
    return ImageFacts(tag=tag, id=await engine.image_id(tag))


async def ensure_image(
    engine: Engine, settings: SandboxSettings, store: PackageStore, on_notice: OnNotice
) -> str:
    """Return the digest of the image; build missing parts first.

    Raises:
        EngineError: If it cannot be built, with the end of the build output.
        PackageError: If a package is not available.
    """
    facts = await find_image(engine, settings.docker)
    if facts.id is not None:
        return facts.id
    base = settings.docker.base_image
    packages = (*PACKAGES, *settings.docker.packages)
    async with _turn(settings.packages_dir, on_notice):
        libraries = packages_tag(await _ensure_base(engine, base, on_notice), packages)
        if await engine.image_id(libraries) is None:
            python = await base_python(engine, base)
            on_notice(f"fetching the packages of the image, for Python {python.version}")
            target = Target(python=python.version, platform=python.platform)
            async with store.open_layer(packages, target) as layer:
                on_notice(f"building the image {libraries} (once; this takes a minute)")
                dockerfile = packages_dockerfile(base, python)
                files = packages_files(layer.folder)
                folders = ("site", "scripts", "bin")
                await _build(engine, libraries, dockerfile, files, on_notice, folders=folders)
        tag = service_tag(libraries, _package())
        found = await engine.image_id(tag)
        if found is None:
            on_notice(f"building the image {tag}")
            dockerfile = service_dockerfile(libraries)
            found = await _build(engine, tag, dockerfile, service_files(_package()), on_notice)
        return found


def _package() -> Path:
    return Path(__file__).parents[2]


async def _ensure_base(engine: Engine, base: str, on_notice: OnNotice) -> str:
    found = await engine.image_id(base)
    if found is None:
        on_notice(f"fetching the base image {base}")
        try:
            await engine.pull(base)
        except EngineError as error:
            raise EngineError(
                f"the base image {base!r} is not there and cannot be fetched: {error}",
                hint="set sandbox.docker.base_image to an image with Python that the engine has",
            ) from error
        found = await engine.image_id(base)
    if found is None:
        raise EngineError(f"the base image {base!r} is not there")
    return found


async def base_python(engine: Engine, base: str) -> ImagePython:
    """Return the interpreter of a base image.

    Raises:
        EngineError: If it has none that is recent enough.
    """
    hint = (
        "set sandbox.docker.base_image to an image with Python 3.11 or newer, as python:3.12-slim"
    )
    try:
        told = await ask_image(engine, base, ("python3", "-I", "-c", _ABOUT_PYTHON))
        fields: Mapping[str, Any] = json.loads(told)
        major, minor = (int(number) for number in fields["version"])
        found = ImagePython(
            version=f"{major}.{minor}", machine=str(fields["machine"]), libc=str(fields["libc"])
        )
    except (EngineError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, EngineError) and error.hint:
            raise  # Not the fault of the image: the disk is full, or the Docker engine is gone.
        raise EngineError(f"the base image {base!r} has no Python: {error}", hint=hint) from error
    if (major, minor) < _OLDEST:
        raise EngineError(f"the base image {base!r} has Python {found.version}", hint=hint)
    return found


async def _build(
    engine: Engine,
    tag: str,
    dockerfile: str,
    files: Files,
    on_notice: OnNotice,
    *,
    folders: Sequence[str] = (),
) -> str:
    """Build one image, remove the leftovers of a failed build, and return the digest.

    Raises:
        EngineError: If it cannot be built, with the end of the build output.
    """
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        if line.startswith("Step "):
            anyio.from_thread.run_sync(on_notice, line)

    with tempfile.TemporaryFile() as context:
        write = partial(write_context, dockerfile, files, context, folders=folders)
        await anyio.to_thread.run_sync(write)
        context.seek(0)
        try:
            await engine.build(context, tag, on_line)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await engine.remove_dangling_images(IMAGE_LABEL)
            if not isinstance(error, EngineError):
                raise
            told = " | ".join(line.strip() for line in lines[-_LAST_LINES:])
            ending = f"; it ended with: {told}" if told else ""
            raise EngineError(
                f"the image {tag!r} cannot be built: {error}{ending}",
                hint=error.hint
                or "set sandbox.docker.base_image to another image, or repair this one",
            ) from error
    found = await engine.image_id(tag)
    if found is None:
        raise EngineError(f"the image {tag!r} was built and is not there")
    return found


def _open_lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / "image.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(
            f"no place for a lock in {str(folder)!r}: {error.strerror}",
            hint="set XDG_CACHE_HOME to a folder that can be written to",
        ) from error


@asynccontextmanager
async def _turn(folder: Path, on_notice: OnNotice) -> AsyncGenerator[None]:
    """Wait until no other process builds."""
    descriptor = _open_lock(folder)
    told = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    on_notice("waiting for another process that builds the image")
                    told = True
                await anyio.sleep(_LOOK_AGAIN_S)
        yield
    finally:
        os.close(descriptor)


class PackageImages:
    """Builds images with packages on top of the common image."""

    def __init__(
        self, engine: Engine, image: str, modules: Sequence[str], store: PackageStore
    ) -> None:
        self._engine = engine
        self._image = image
        self._modules = modules
        """The modules that the image preloads."""
        self._store = store
        self._target: Target | None = None
        self._turn = anyio.Lock()

    async def image_with(self, equipment: SandboxSpec) -> str:
        """Return the digest of an image with the packages and the project of a sandbox.

        Raises:
            PackageError: If a package is not available.
            MissingExtraError: If uv is needed and not installed.
            SandboxUnavailableError: If the Docker engine does not build the image.
        """
        try:
            async with self._turn:
                target = self._target = self._target or await self._ask_target()
                opening = self._store.open_layer(
                    equipment.packages, target, project=equipment.project
                )
                async with opening as layer:
                    # Added to the complete image.
                    dockerfile = (
                        f"FROM {self._image}\nLABEL {IMAGE_LABEL}=layer\n"
                        f"COPY layer {SHIPPED_LAYERS}/{SHIPPED_LAYER}\n"
                    )
                    tag = f"{REPOSITORY}:with-{_key(f'{dockerfile}{layer.key}'.encode())}"
                    found = await self._engine.image_id(tag)
                    if found is None:
                        files = (
                            (f"layer/{inner}", path)
                            for inner, path in _files_below(layer.folder.parent)
                        )
                        found = await _build(self._engine, tag, dockerfile, files, lambda _: None)
                    return found
        except EngineError as error:
            raise SandboxUnavailableError(
                str(error), dispatch="never_started", hint=error.hint
            ) from error

    async def _ask_target(self) -> Target:
        """Return the interpreter of the image and the modules that it preloads."""
        command = (_PYTHON, "-I", "-c", _ABOUT_TARGET, json.dumps(self._modules))
        try:
            told: Mapping[str, Any] = json.loads(
                await ask_image(self._engine, self._image, command)
            )
            return Target(
                python=str(told["python"]),
                platform=str(told["platform"]),
                present=tuple(map(str, told["present"])),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(f"the image does not say what it has: {error}") from error
