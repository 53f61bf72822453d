"""Manifests of layers: every entry of a folder with the digest of its content, on both sides.

The digest of a manifest names the layer on the other side, which computes it again.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from assay.contracts.errors import UsageError
from assay.contracts.workspace import WorkspaceLayer
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages.codec import FILE_KINDS, MessageError

_SHA256_BYTES: Final = 32
MOST_ENTRIES: Final = 200_000
_LONGEST_PATH: Final = 4095
_LONGEST_NAME: Final = 255
_LARGEST_FILE: Final = 1 << 40
_PER_ENTRY: Final = 16384
"""What an entry counts in addition to its content: space, inode and memory of this process."""
_FORBIDDEN: Final = frozenset({b"", b".", b".."})


@dataclass(frozen=True, slots=True)
class Manifest:
    """The entries of a layer, sorted so that folders come before what is in them."""

    digest: bytes
    entries: tuple[pb.LayerEntry, ...]

    def files(self) -> Iterator[pb.LayerEntry]:
        return (entry for entry in self.entries if entry.kind == pb.FILE_KIND_FILE)

    @property
    def counted_bytes(self) -> int:
        """The size for limits: contents, and something for each entry."""
        return sum(entry.size_bytes for entry in self.files()) + _PER_ENTRY * len(self.entries)


def digest_of(entries: Iterable[pb.LayerEntry]) -> bytes:
    """Return the digest of a manifest with these entries."""
    digest = hashlib.sha256()
    for entry in entries:
        encoded = entry.SerializeToString(deterministic=True)
        digest.update(len(encoded).to_bytes(8) + encoded)
    return digest.digest()


@lru_cache(maxsize=4)
def read_manifest(layer: WorkspaceLayer) -> Manifest:
    """Read and hash a layer; blocks. Equal layers are read once, since layers never change.

    Raises:
        UsageError: If the layer cannot be read.
    """
    try:
        entries = sorted(_entries_of(layer.folder), key=lambda entry: entry.path.split(b"/"))
    except OSError as error:
        raise UsageError(
            f"the layer {layer.digest[:12]} cannot be read: {error.strerror}"
        ) from error
    return Manifest(digest_of(entries), tuple(entries))


def layer_size_mb(layer: WorkspaceLayer) -> int:
    """Return the size of a layer for limits; blocks, and raises like `read_manifest`."""
    return (read_manifest(layer).counted_bytes >> 20) + 1


def _entries_of(top: Path) -> Iterator[pb.LayerEntry]:
    waiting = [(os.fsencode(top), b"")]
    while waiting:
        folder, below = waiting.pop()
        with os.scandir(folder) as found:
            for one in found:
                path = below + one.name
                details = one.stat(follow_symlinks=False)
                if stat.S_ISDIR(details.st_mode):
                    waiting.append((one.path, path + b"/"))
                    yield pb.LayerEntry(path=path, kind=pb.FILE_KIND_DIRECTORY)
                elif stat.S_ISLNK(details.st_mode):
                    target = os.readlink(one.path)  # noqa: PTH115 - keeps `./`
                    yield pb.LayerEntry(path=path, kind=pb.FILE_KIND_SYMLINK, target=target)
                elif stat.S_ISREG(details.st_mode):
                    sha256, size = _hash_file(one.path)
                    yield pb.LayerEntry(
                        path=path,
                        kind=pb.FILE_KIND_FILE,
                        executable=bool(details.st_mode & stat.S_IXUSR),
                        size_bytes=size,
                        sha256=sha256,
                    )


def _hash_file(path: bytes) -> tuple[bytes, int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
        return digest, file.tell()


def check_manifest(digest: bytes, entries: Iterable[pb.LayerEntry]) -> Manifest:
    """Return a manifest from another side, whose every path lies in the layer.

    Raises:
        MessageError: If its digest is wrong, or no folder can have these entries.
    """
    checked = tuple(entries)
    if len(checked) > MOST_ENTRIES:
        raise MessageError(f"a layer with {len(checked)} entries")
    if digest_of(checked) != digest:
        raise MessageError("the digest of a layer is not that of its entries")
    folders, seen = {b""}, {b""}
    for entry in checked:
        _check_path(entry.path)
        # A link or a file that is a parent could lead out of the layer.
        if entry.path.rpartition(b"/")[0] not in folders or entry.path in seen:
            raise MessageError(f"a layer cannot have the path {entry.path!r:.80}")
        seen.add(entry.path)
        match FILE_KINDS.decode(entry.kind):
            case "directory":
                folders.add(entry.path)
            case "symlink":
                if not 0 < len(entry.target) <= _LONGEST_PATH or b"\0" in entry.target:
                    raise MessageError(f"not the target of a link: {entry.target!r:.80}")
            case "file":
                if len(entry.sha256) != _SHA256_BYTES or entry.size_bytes > _LARGEST_FILE:
                    raise MessageError(f"not the content of a file: {entry.path!r:.80}")
            case _:
                raise MessageError(f"a layer holds no such entry: {entry.path!r:.80}")
    return Manifest(digest, checked)


def _check_path(path: bytes) -> None:
    names = path.split(b"/")
    impossible = b"\0" in path or len(path) > _LONGEST_PATH or _FORBIDDEN.intersection(names)
    if impossible or max(map(len, names)) > _LONGEST_NAME:
        raise MessageError(f"not a path in a layer: {path!r:.80}")
