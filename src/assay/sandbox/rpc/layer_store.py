"""The layers that one client has sent, as folders from which its sandboxes open.

Each client has its own store: a client that knows the digest of a file must not get its content
from the layer of another client. The store lives as long as the service, and removes the layers
that were not used for longest when it exceeds its size.
"""

import hashlib
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

import anyio
from anyio import to_thread

from assay.contracts.errors import UsageError, WorkspaceFullError
from assay.contracts.workspace import WorkspaceLayer
from assay.sandbox.rpc.layer_manifest import Manifest, check_manifest, digest_of
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages.codec import MessageError, from_path

_NOTHING: Final = digest_of(())

CheckFile = Callable[[PurePosixPath, bytes], None]
"""Raises `PolicyError` if a file is not allowed."""


@dataclass(slots=True, eq=False)
class _Layer:
    manifest: Manifest
    folder: Path
    missing: dict[bytes, list[pb.LayerEntry]]
    """Files without content, by the digest of it."""
    users: int = 0
    size_bytes: int = field(init=False)
    contents: frozenset[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = self.manifest.counted_bytes
        self.contents = frozenset(entry.sha256 for entry in self.manifest.files())

    def place_of(self, entry: pb.LayerEntry) -> Path:
        return self.folder / os.fsdecode(entry.path)


class LayerStore:
    """The layers of one client; closing the store removes them."""

    def __init__(self, most_bytes: int, check_file: CheckFile, *, parent: Path | None) -> None:
        self._most_bytes = most_bytes
        self._check_file = check_file
        self._parent = parent
        self._home: Path | None = None
        self._layers: OrderedDict[bytes, _Layer] = OrderedDict()
        """The least recently used ones first."""
        self._turn = anyio.Lock()

    async def offer(self, digest: bytes, entries: list[pb.LayerEntry]) -> pb.OfferLayerResponse:
        """Prepare a layer, and return what is missing of it.

        Raises:
            MessageError: If no folder can have these entries.
            WorkspaceFullError: If it is larger than the store.
        """
        async with self._turn:
            if digest not in self._layers:
                if not entries and digest != _NOTHING:
                    return pb.OfferLayerResponse(complete=False)
                manifest = await to_thread.run_sync(check_manifest, digest, entries)
                await to_thread.run_sync(self._make_room, manifest.counted_bytes)
                self._layers[digest] = await to_thread.run_sync(self._create, manifest)
            self._layers.move_to_end(digest)
            missing = self._layers[digest].missing
            return pb.OfferLayerResponse(complete=not missing, missing=missing)

    async def put(self, first: pb.PutBlobsRequest, rest: AsyncIterator[pb.PutBlobsRequest]) -> None:
        """Add missing contents to a layer; one that is not missing any more is ignored.

        Raises:
            MessageError: If a content has another digest or size, or belongs to no file.
            PolicyError: If a file is not allowed.
            UsageError: If there is no such layer.
        """
        layer, sha256 = self._find(first.layer), first.sha256
        content = bytearray(first.content)
        self._check_size(layer, sha256, len(content))
        async for piece in rest:
            if piece.layer != first.layer:
                raise MessageError("contents of two layers in one request")
            if piece.sha256 != sha256:
                await self._add(layer, sha256, bytes(content))
                sha256 = piece.sha256
                content.clear()
            content += piece.content
            self._check_size(layer, sha256, len(content))
        await self._add(layer, sha256, bytes(content))

    @asynccontextmanager
    async def held(self, digest: bytes) -> AsyncGenerator[WorkspaceLayer]:
        """Keep a complete layer while a sandbox uses it.

        Raises:
            UsageError: If there is no such layer (any more).
        """
        layer = self._find(digest)
        if layer.missing:
            raise UsageError("some contents of the layer have not arrived")
        layer.users += 1
        self._layers.move_to_end(digest)
        try:
            yield WorkspaceLayer(digest.hex(), layer.folder)
        finally:
            layer.users -= 1

    async def close(self) -> None:
        if self._home is not None:
            await to_thread.run_sync(shutil.rmtree, self._home, True)  # noqa: FBT003 - ignore_errors

    def _find(self, digest: bytes) -> _Layer:
        if digest not in self._layers:
            raise UsageError("there is no such layer (any more)", hint="send it again")
        return self._layers[digest]

    def _check_size(self, layer: _Layer, sha256: bytes, size: int) -> None:
        entries = layer.missing.get(sha256)
        if entries is not None and size > entries[0].size_bytes:
            raise MessageError(f"a content of more than {entries[0].size_bytes} bytes")
        if sha256 not in layer.contents:
            raise MessageError("the layer has no file with this content")

    async def _add(self, layer: _Layer, sha256: bytes, content: bytes) -> None:
        async with self._turn:
            entries = layer.missing.get(sha256)
            if entries is None:
                return
            if hashlib.sha256(content).digest() != sha256:
                raise MessageError("a content has another digest")
            for entry in entries:
                self._check_file(from_path(entry.path), content)
            await to_thread.run_sync(_write_all, layer, entries, content)
            del layer.missing[sha256]

    def _create(self, manifest: Manifest) -> _Layer:
        """Create the folder of a layer with what other layers have of it."""
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="assay-layers-", dir=self._parent))
        layer = _Layer(manifest, Path(tempfile.mkdtemp(dir=self._home)) / "files", {})
        try:
            self._fill(layer)
        except BaseException:
            shutil.rmtree(layer.folder.parent, ignore_errors=True)
            raise
        return layer

    def _fill(self, layer: _Layer) -> None:
        layer.folder.mkdir(mode=0o755)
        known = self._known_files()
        for entry in layer.manifest.entries:
            place = layer.place_of(entry)
            if entry.kind == pb.FILE_KIND_DIRECTORY:
                place.mkdir(mode=0o755)
            elif entry.kind == pb.FILE_KIND_SYMLINK:
                place.symlink_to(os.fsdecode(entry.target))
            elif found := known.get((entry.sha256, entry.executable, entry.size_bytes)):
                other, paths = found
                if entry.path not in paths:
                    # Whether a file is allowed depends on its name too.
                    self._check_file(from_path(entry.path), other.read_bytes())
                _link_or_copy(other, place)
            else:
                layer.missing.setdefault(entry.sha256, []).append(entry)

    def _known_files(self) -> dict[tuple[bytes, bool, int], tuple[Path, set[bytes]]]:
        """Return the files of all layers: one place for each content, and all its paths."""
        known: dict[tuple[bytes, bool, int], tuple[Path, set[bytes]]] = {}
        for layer in self._layers.values():
            for entry in layer.manifest.files():
                if entry.sha256 not in layer.missing:
                    key = (entry.sha256, entry.executable, entry.size_bytes)
                    _, paths = known.setdefault(key, (layer.place_of(entry), set()))
                    paths.add(entry.path)
        return known

    def _make_room(self, size_bytes: int) -> None:
        """Remove unused layers, the least recently used ones first."""
        room = self._most_bytes - sum(one.size_bytes for one in self._layers.values())
        for digest, layer in [*self._layers.items()]:
            if room < size_bytes <= self._most_bytes and not layer.users:
                del self._layers[digest]
                shutil.rmtree(layer.folder.parent, ignore_errors=True)
                room += layer.size_bytes
        if room < size_bytes:
            raise WorkspaceFullError(
                f"no room for a layer that counts as {size_bytes >> 20} MB, "
                f"of {self._most_bytes >> 20} MB for all"
            )


def _link_or_copy(other: Path, place: Path) -> None:
    try:
        os.link(other, place, follow_symlinks=False)
    except OSError:
        # A file system limits the number of links to one file.
        shutil.copy2(other, place)


def _write_all(layer: _Layer, entries: list[pb.LayerEntry], content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for entry in entries:
        if len(content) != entry.size_bytes:
            raise MessageError(f"a content of {len(content)} bytes, not {entry.size_bytes}")
        mode = 0o755 if entry.executable else 0o644
        descriptor = os.open(layer.place_of(entry), flags, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
