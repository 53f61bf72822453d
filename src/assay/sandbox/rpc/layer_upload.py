"""Sends the layers of sandboxes to the side that runs them: only what that side lacks."""

import os
from collections.abc import Iterator
from typing import Final, Protocol

from anyio import to_thread

from assay.contracts.errors import UsageError
from assay.contracts.workspace import WorkspaceLayer
from assay.sandbox.rpc.layer_manifest import Manifest, read_manifest
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages import methods
from assay.sandbox.rpc.messages.codec import CHUNK_BYTES
from assay.sandbox.rpc.messages.methods import Method, Request, Response

_ENTRIES_AT_ONCE: Final = 2000
_BATCH_BYTES: Final = 8 << 20
"""The content that is in memory and in one call, about."""
_TIMEOUT_S: Final = 120.0


class OtherSide(Protocol):
    """Calls methods of the side that has the layers; see `client_sandbox.Transport`."""

    async def ask(
        self, method: Method[Request, Response], *requests: Request, timeout_s: float | None = None
    ) -> Response: ...


async def send_layer(transport: OtherSide, layer: WorkspaceLayer) -> bytes:
    """Make a layer known to the other side, and return its digest there.

    Raises:
        UsageError: If the layer cannot be read.
        SandboxUnavailableError: If the other side cannot be reached.
    """
    manifest = await to_thread.run_sync(read_manifest, layer)
    digest = manifest.digest
    question = pb.OfferLayerRequest(digest=digest)
    if (await transport.ask(methods.OFFER_LAYER, question, timeout_s=_TIMEOUT_S)).complete:
        return digest
    entries = manifest.entries
    offer = (
        pb.OfferLayerRequest(digest=digest, entries=entries[begin : begin + _ENTRIES_AT_ONCE])
        for begin in range(0, max(1, len(entries)), _ENTRIES_AT_ONCE)
    )
    answer = await transport.ask(methods.OFFER_LAYER, *offer, timeout_s=_TIMEOUT_S)
    batches = _batches(layer, manifest, frozenset(answer.missing))
    while batch := await to_thread.run_sync(next, batches, None):
        await transport.ask(methods.PUT_BLOBS, *batch, timeout_s=_TIMEOUT_S)
    return digest


def _batches(
    layer: WorkspaceLayer, manifest: Manifest, missing: frozenset[bytes]
) -> Iterator[list[pb.PutBlobsRequest]]:
    wanted = {entry.sha256: entry for entry in manifest.files() if entry.sha256 in missing}
    batch: list[pb.PutBlobsRequest] = []
    size = 0
    for sha256, entry in wanted.items():
        content = _read(layer, entry)
        for begin in range(0, max(1, len(content)), CHUNK_BYTES):
            piece = content[begin : begin + CHUNK_BYTES]
            batch.append(pb.PutBlobsRequest(layer=manifest.digest, sha256=sha256, content=piece))
        size += len(content)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read(layer: WorkspaceLayer, entry: pb.LayerEntry) -> bytes:
    place = layer.folder / os.fsdecode(entry.path)
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(
            f"the layer {layer.digest[:12]} cannot be read: {error.strerror}"
        ) from error
