"""The workspace layers that an engine has mounted, so that sandboxes can start with them.

Layers stay mounted for the next sandbox; only the least recently used ones are unmounted. A layer
is identified by its folder too, since the mount of a removed folder is empty.
"""

import itertools
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import anyio

from assay.contracts.errors import SandboxUnavailableError, UsageError
from assay.contracts.workspace import WorkspaceLayer

_MOST_UNUSED: Final = 8

_Identity = tuple[str, int, int]
"""Digest of the layer; device and inode of its folder."""


class LayerMounts(Protocol):
    """Mounts layers: the engine."""

    @property
    def mounts_layers(self) -> bool: ...

    def mount_layer(self, folder: Path, name: str) -> Awaitable[None]: ...

    def unmount_layer(self, name: str) -> Awaitable[None]: ...


@dataclass(slots=True)
class _Mounted:
    name: str
    users: int = 0


class WorkspaceLayers:
    """The mounted layers of one engine."""

    def __init__(self, mounts: LayerMounts) -> None:
        self._mounts = mounts
        self._mounted: OrderedDict[_Identity, _Mounted] = OrderedDict()
        """The least recently used ones first."""
        self._turn = anyio.Lock()
        self._names = itertools.count(1)

    @asynccontextmanager
    async def mounted(self, layer: WorkspaceLayer) -> AsyncGenerator[str]:
        """Keep a layer mounted, and yield its name; yield nothing if the kernel refuses.

        Raises:
            UsageError: If there is no such folder.
        """
        identity = _identify(layer)
        found = await self._find(identity, layer) if self._mounts.mounts_layers else None
        if found is None:
            yield ""
            return
        try:
            yield found.name
        finally:
            found.users -= 1
            with anyio.CancelScope(shield=True):
                await self._unmount_some()

    async def _find(self, identity: _Identity, layer: WorkspaceLayer) -> _Mounted | None:
        async with self._turn:
            found = self._mounted.get(identity)
            if found is None:
                found = _Mounted(str(next(self._names)))
                try:
                    await self._mounts.mount_layer(layer.folder, found.name)
                except SandboxUnavailableError:
                    # Copying the layer takes longer and needs nothing of the kernel.
                    return None
                self._mounted[identity] = found
            self._mounted.move_to_end(identity)
            found.users += 1
            return found

    async def _unmount_some(self) -> None:
        async with self._turn:
            unused = [key for key, one in self._mounted.items() if not one.users]
            for identity in unused[: max(0, len(unused) - _MOST_UNUSED)]:
                await self._mounts.unmount_layer(self._mounted.pop(identity).name)


def _identify(layer: WorkspaceLayer) -> _Identity:
    try:
        descriptor = os.open(layer.folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise UsageError(
            f"the layer {layer.digest[:12]} cannot be read: {error.strerror}"
        ) from error
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return layer.digest, found.st_dev, found.st_ino
