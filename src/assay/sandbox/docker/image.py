"""Provision of the image `assay-python`: finds it, or builds it once, one process at a time."""

import fcntl
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import anyio
import anyio.from_thread
import anyio.to_thread

from assay.contracts.errors import UsageError
from assay.sandbox.docker import dockerfile as recipe
from assay.sandbox.docker.container import ask_image
from assay.sandbox.docker.dockerfile import ImagePython
from assay.sandbox.docker.engine import Engine, EngineError
from assay.sandbox.docker.labels import IMAGE_LABEL

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
    tag = recipe.service_tag(_packages_tag(base_id, options), _package())
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
        tag = recipe.service_tag(packages_tag, _package())
        found = await engine.image_id(tag)
        if found is None:
            on_notice(f"building the image {tag}")
            found = await _build_service(engine, packages_tag, tag, on_notice)
        return found


def _package() -> Path:
    return Path(__file__).parents[2]


def _packages_tag(base_id: str, options: ImageOptions) -> str:
    return recipe.packages_tag(base_id, (*recipe.PACKAGES, *options.packages))


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
        told = await ask_image(engine, base, ("python3", "-I", "-c", recipe.ABOUT_PYTHON))
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
        dockerfile = recipe.packages_dockerfile(options.base, python)
        on_notice(f"building the image {tag} (once; this takes a minute)")

        def write(into: BinaryIO) -> None:
            recipe.write_packages_context(dockerfile, layer, into)

        await _build(engine, tag, write, on_notice)


async def _build_service(engine: Engine, packages_tag: str, tag: str, on_notice: OnNotice) -> str:
    dockerfile = recipe.service_dockerfile(packages_tag)

    def write(into: BinaryIO) -> None:
        recipe.write_service_context(dockerfile, _package(), into)

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
