"""Builds of source distributions: in a sandbox without a network, never on the host.

Assay downloads the source and the wheels that its build needs. The sandbox gets both, and gives one
wheel back.
"""

import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from anyio import to_thread

from assay.contracts.errors import AssayError, PackageError
from assay.contracts.execution import Command, Limits
from assay.sandbox.factory import build_package_store
from assay.sandbox.packages.requirements import Requirement
from assay.sandbox.packages.resolver import IndexUnreachableError
from assay.sandbox.packages.sources import Source, download_source, find_source
from assay.sandbox.packages.target import own_target
from assay.settings.load import SandboxSettings
from assay.wiring import open_backend

_LIMITS: Final = Limits(wall_s=900, cpu_s=1800, memory_mb=2048, processes=128, disk_mb=2048)
_LARGEST_PYPROJECT: Final = 1 << 20
_LARGEST_WHEEL: Final = 512 << 20
_ALWAYS: Final = ("pip", "setuptools", "wheel")
_WHEELS: Final = PurePosixPath("wheels")
_TAIL: Final = 300


async def build_from_source(
    settings: SandboxSettings, requirement: Requirement, on_notice: Callable[[str], None]
) -> None:
    """Build a wheel of one package and add it to the store.

    Raises:
        PackageError: If there is no source, or the build fails.
        MissingExtraError: If uv is not installed.
        SandboxUnavailableError: If no sandbox can be opened.
    """
    store = build_package_store(settings)
    environment = settings.index_environment
    with tempfile.TemporaryDirectory(prefix="assay-source-") as name:
        folder = Path(name)
        try:
            source = await find_source(store.resolver, requirement, own_target(()), folder)
        except IndexUnreachableError as error:
            raise PackageError(
                f"the package index cannot be reached: {error}", index_unreachable=True
            ) from error
        if requirement.hashes and f"sha256:{source.sha256}" not in requirement.hashes:
            raise PackageError(f"the source of {source.name} has another hash than the lock states")
        on_notice(f"building {source.name} {source.version} from source, in a sandbox")
        path = await download_source(source, environment, folder)
        needed = await to_thread.run_sync(_build_requirements, path)
        content = await to_thread.run_sync(path.read_bytes)
    try:
        file_name, wheel = await _build(settings, source, content, needed)
    except PackageError as error:
        raise PackageError(
            f"{source.name} {source.version} has no wheel, and its build failed: {error}",
            hint="install it into a virtual environment, and use a version with a wheel",
        ) from error
    store.built.add(source.sha256, file_name, wheel, name=source.name)


async def _build(
    settings: SandboxSettings, source: Source, content: bytes, needed: tuple[str, ...]
) -> tuple[str, bytes]:
    packages = tuple(dict.fromkeys((*_ALWAYS, *needed)))
    docker = settings.docker.model_copy(update={"warm_containers": 0})
    update = {"packages": packages, "hosts": (), "preload": (), "pool_size": 0, "docker": docker}
    words = ["python3", "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation"]
    words += ["--disable-pip-version-check", "--wheel-dir", str(_WHEELS), source.file_name]
    async with (
        open_backend(settings.model_copy(update=update)) as backend,
        backend.open_sandbox(_LIMITS) as sandbox,
    ):
        await sandbox.write_file(PurePosixPath(source.file_name), content)
        result = await sandbox.run(Command(argv=tuple(words)))
        if result.exit_code != 0:
            said = " ".join(result.stderr.split()) or result.reason.value
            raise PackageError(said[-_TAIL:])
        try:
            files = [file.path for file in await sandbox.list_files(_WHEELS)]
            wheel = next(path for path in files if path.suffix == ".whl")
            return wheel.name, await sandbox.read_file(wheel, max_bytes=_LARGEST_WHEEL)
        except StopIteration:
            raise PackageError("it made no wheel") from None
        except AssayError as error:
            raise PackageError(f"its wheel cannot be read: {error}") from error


def _build_requirements(path: Path) -> tuple[str, ...]:
    """Return the packages that the build of a source distribution needs, as it states them."""
    text = _pyproject(path)
    try:
        system: object = tomllib.loads(text.decode()).get("build-system")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return ()
    if not isinstance(system, dict):
        return ()
    listed: object = cast("dict[str, Any]", system).get("requires")
    texts = cast("list[object]", listed) if isinstance(listed, list) else []
    from assay.environment.declared import applicable

    names = (applicable(one, source="pyproject.toml") for one in texts if isinstance(one, str))
    return tuple(name for name in names if name)


def _pyproject(path: Path) -> bytes:
    """Return `pyproject.toml` from the top folder of an archive; empty if there is none."""
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    if _is_pyproject(entry.filename) and entry.file_size < _LARGEST_PYPROJECT:
                        return archive.read(entry)
            return b""
        with tarfile.open(path) as tar:
            for member in tar:
                small = member.isfile() and member.size < _LARGEST_PYPROJECT
                if small and _is_pyproject(member.name) and (file := tar.extractfile(member)):
                    return file.read(_LARGEST_PYPROJECT)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise PackageError(f"{path.name!r} is not an archive: {error}") from error
    return b""


def _is_pyproject(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return len(parts) == 2 and parts[1] == "pyproject.toml"  # noqa: PLR2004 - the top folder and it
