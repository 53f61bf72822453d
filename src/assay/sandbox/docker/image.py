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
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import anyio
import anyio.from_thread
import anyio.to_thread

from assay.contracts.errors import SandboxUnavailableError, UsageError
from assay.sandbox.docker.container import ask_image
from assay.sandbox.docker.engine import Engine, EngineError
from assay.sandbox.docker.entrypoint import SHIPPED_LAYER, SHIPPED_LAYERS
from assay.sandbox.docker.labels import IMAGE_LABEL
from assay.sandbox.packages.store import Layer
from assay.sandbox.packages.target import Target

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

_SERVICE_PARTS: Final = ("__init__.py", "asyncx", "contracts", "sandbox")
"""The parts of the package `assay` that run in the container."""

ABOUT_TARGET: Final = (
    "import json; from dataclasses import asdict; "
    "from assay.sandbox.packages.target import own_target; "
    "print(json.dumps(asdict(own_target(json.loads(sys.argv[1])))))"
)
ABOUT_PYTHON: Final = (
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


def layer_dockerfile(image: str) -> str:
    """Add the packages that a sandbox requested to the complete image."""
    return f"""FROM {image}
LABEL {IMAGE_LABEL}=layer
COPY layer {SHIPPED_LAYERS}/{SHIPPED_LAYER}
"""


def layer_tag(image: str, key: str) -> str:
    """Return the tag of an image with packages: a digest of its contents."""
    content = f"{layer_dockerfile(image)}{key}"
    return f"{REPOSITORY}:with-{_key(content.encode())}"


def ask_service(source: str, *arguments: str) -> tuple[str, ...]:
    """Return the command for a few lines of Python that may import the service's modules."""
    find = f"import sys; sys.path.insert(0, {_SERVICE!r}); "
    return (_PYTHON, "-I", "-c", find + source, *arguments)


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
    """Yield the sources that run in the container, with their paths in the package folder."""
    for part in _SERVICE_PARTS:
        found = package / part
        paths = [found] if found.is_file() else sorted(found.rglob("*"))
        for path in paths:
            if path.suffix in {".py", ".toml"} and path.is_file():
                yield str(path.relative_to(package)), path


def write_packages_context(dockerfile: str, layer: Path, into: BinaryIO) -> None:
    """Write the context of the first image: libraries, build commands and uv."""
    with tarfile.open(fileobj=into, mode="w") as archive:
        _add_text(archive, "Dockerfile", dockerfile)
        for folder in ("site", "scripts", "bin"):
            _add_folder(archive, folder)
        for path in sorted(layer.rglob("*")):
            if not path.is_file():
                continue
            inner = path.relative_to(layer)
            if inner.parts[0] != "bin":
                _add_file(archive, f"site/{inner}", path)
            elif path.name in {"uv", "uvx"}:
                # Below /usr, where every program finds it.
                _add_file(archive, f"bin/{path.name}", path)
            else:
                _add_file(archive, f"scripts/{path.name}", path)


def write_service_context(dockerfile: str, package: Path, into: BinaryIO) -> None:
    """Write the context of the second image."""
    with tarfile.open(fileobj=into, mode="w") as archive:
        _add_text(archive, "Dockerfile", dockerfile)
        for name, path in service_files(package):
            _add_file(archive, f"service/assay/{name}", path)


def write_layer_context(dockerfile: str, layer: Path, into: BinaryIO) -> None:
    """Write the context of an image with packages: a layer of the package store."""
    with tarfile.open(fileobj=into, mode="w") as archive:
        _add_text(archive, "Dockerfile", dockerfile)
        for path in sorted(layer.rglob("*")):
            if path.is_file():
                _add_file(archive, f"layer/{path.relative_to(layer)}", path)


def _entry(name: str, size: int, mode: int) -> tarfile.TarInfo:
    """No times and owners of this machine: the same content gives the same image."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, mode
    return entry


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    archive.addfile(_entry(name, len(content), 0o644), io.BytesIO(content))


def _add_folder(archive: tarfile.TarFile, name: str) -> None:
    entry = _entry(name, 0, 0o755)
    entry.type = tarfile.DIRTYPE
    archive.addfile(entry)


def _add_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    status = path.stat()
    mode = 0o755 if status.st_mode & 0o111 else 0o644
    with path.open("rb") as content:
        archive.addfile(_entry(name, status.st_size, mode), content)


# `-I`: the service never imports a file that a program wrote.
SERVICE_COMMAND: Final = ask_service("from assay.sandbox.docker.entrypoint import main; main()")

_OLDEST: Final = (3, 11)
_LOOK_AGAIN_S: Final = 0.2
_LAST_LINES: Final = 8

OpenPackages = Callable[[ImagePython], AbstractAsyncContextManager[Path]]
"""Provides the image's libraries in a folder, for an interpreter other than this one."""
OnNotice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """The inputs of the image and the folders for its build."""

    base: str
    packages: tuple[str, ...]
    """Packages beyond those that every image has."""
    open_packages: OpenPackages
    locks: Path
    """A folder for the lock that prevents concurrent builds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """The image to use, and whether it exists."""

    tag: str
    id: str | None
    """Its digest; None if it has to be built first."""


async def find_image(engine: Engine, options: ImageOptions) -> ImageFacts:
    """Return the image to use, without building or downloading anything."""
    base_id = await engine.image_id(options.base)
    if base_id is None:
        return ImageFacts(tag="", id=None)
    tag = service_tag(_packages_tag(base_id, options), _package())
    return ImageFacts(tag=tag, id=await engine.image_id(tag))


async def ensure_image(engine: Engine, options: ImageOptions, on_notice: OnNotice) -> str:
    """Return the digest of the image; build missing parts first.

    Raises:
        EngineError: If it cannot be built, with the end of the build output.
        PackageError: If a package is not available.
    """
    facts = await find_image(engine, options)
    if facts.id is not None:
        return facts.id
    async with _turn(options.locks, on_notice):
        base_id = await _ensure_base(engine, options.base, on_notice)
        packages_tag = _packages_tag(base_id, options)
        if await engine.image_id(packages_tag) is None:
            await _build_packages(engine, options, packages_tag, on_notice)
        tag = service_tag(packages_tag, _package())
        found = await engine.image_id(tag)
        if found is None:
            on_notice(f"building the image {tag}")
            found = await _build_service(engine, packages_tag, tag, on_notice)
        return found


def _package() -> Path:
    return Path(__file__).parents[2]


def _packages_tag(base_id: str, options: ImageOptions) -> str:
    return packages_tag(base_id, (*PACKAGES, *options.packages))


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
        told = await ask_image(engine, base, ("python3", "-I", "-c", ABOUT_PYTHON))
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


async def _build_packages(
    engine: Engine, options: ImageOptions, tag: str, on_notice: OnNotice
) -> None:
    python = await base_python(engine, options.base)
    on_notice(f"fetching the packages of the image, for Python {python.version}")
    async with options.open_packages(python) as layer:
        dockerfile = packages_dockerfile(options.base, python)
        on_notice(f"building the image {tag} (once; this takes a minute)")

        def write(into: BinaryIO) -> None:
            write_packages_context(dockerfile, layer, into)

        await _build(engine, tag, write, on_notice)


async def _build_service(engine: Engine, packages_tag: str, tag: str, on_notice: OnNotice) -> str:
    dockerfile = service_dockerfile(packages_tag)

    def write(into: BinaryIO) -> None:
        write_service_context(dockerfile, _package(), into)

    await _build(engine, tag, write, on_notice)
    found = await engine.image_id(tag)
    if found is None:
        raise EngineError(f"the image {tag!r} was built and is not there")
    return found


async def _build(
    engine: Engine, tag: str, write: Callable[[BinaryIO], None], on_notice: OnNotice
) -> None:
    with tempfile.TemporaryFile() as context:
        await anyio.to_thread.run_sync(write, context)
        context.seek(0)
        await build_image(engine, tag, context, on_notice)


async def build_image(engine: Engine, tag: str, context: BinaryIO, on_notice: OnNotice) -> None:
    """Build one image and remove the leftovers of a failed build.

    Raises:
        EngineError: If it cannot be built, with the end of the build output.
    """
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        if line.startswith("Step "):
            anyio.from_thread.run_sync(on_notice, line)

    try:
        await engine.build(context, tag, on_line)
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await engine.remove_dangling_images(IMAGE_LABEL)
        if isinstance(error, EngineError):
            raise _unbuilt(tag, error, lines) from error
        raise


def _unbuilt(tag: str, error: EngineError, lines: list[str]) -> EngineError:
    told = " | ".join(line.strip() for line in lines[-_LAST_LINES:])
    return EngineError(
        f"the image {tag!r} cannot be built: {error}{f'; it ended with: {told}' if told else ''}",
        hint=error.hint or "set sandbox.docker.base_image to another image, or repair this one",
    )


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


OpenLayer = Callable[[Sequence[str], Target], AbstractAsyncContextManager[Layer]]


class PackageImages:
    """Builds images with packages on top of the common image."""

    def __init__(
        self, engine: Engine, image: str, preload: Sequence[Sequence[str]], open_layer: OpenLayer
    ) -> None:
        self._engine = engine
        self._image = image
        self._preload = preload
        self._open_layer = open_layer
        self._target: Target | None = None
        self._turn = anyio.Lock()

    async def image_with(self, packages: Sequence[str]) -> str:
        """Return the digest of an image with these packages.

        Raises:
            PackageError: If a package is not available.
            MissingExtraError: If uv is needed and not installed.
            SandboxUnavailableError: If the Docker engine does not build the image.
        """
        try:
            async with (
                self._turn,
                self._open_layer(packages, await self._ask_target()) as layer,
            ):
                return await self._image_of(layer)
        except EngineError as error:
            raise SandboxUnavailableError(
                str(error), dispatch="never_started", hint=error.hint
            ) from error

    async def _ask_target(self) -> Target:
        """Return the interpreter of the image and the modules that it preloads."""
        if self._target is None:
            modules = [module for stage in self._preload for module in stage]
            command = ask_service(ABOUT_TARGET, json.dumps(modules))
            try:
                told: Mapping[str, Any] = json.loads(
                    await ask_image(self._engine, self._image, command)
                )
                self._target = Target(
                    python=str(told["python"]),
                    platform=str(told["platform"]),
                    present=tuple(map(str, told["present"])),
                )
            except (ValueError, KeyError, TypeError) as error:
                raise EngineError(f"the image does not say what it has: {error}") from error
        return self._target

    async def _image_of(self, layer: Layer) -> str:
        tag = layer_tag(self._image, layer.key)
        found = await self._engine.image_id(tag)
        if found is None:
            dockerfile = layer_dockerfile(self._image)
            with tempfile.TemporaryFile() as context:
                write = write_layer_context
                await anyio.to_thread.run_sync(write, dockerfile, layer.folder.parent, context)
                context.seek(0)
                await build_image(self._engine, tag, context, lambda _: None)
            found = await self._engine.image_id(tag)
        if found is None:
            raise EngineError(f"the image {tag!r} was built and is not there")
        return found
