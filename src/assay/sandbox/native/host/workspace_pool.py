"""One empty workspace prepared ahead of need, so that a sandbox opens without delay.

It has the size that was requested last, because the next request usually has the same size.
"""

import os
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import anyio

from assay.contracts.errors import SandboxUnavailableError

_HOLD_BACK_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A workspace of limited size that no sandbox has used yet."""

    name: str
    size_bytes: int
    workspace: int
    """A directory descriptor; the owner of the workspace closes it."""


class BoxMaker(Protocol):
    """Creates and removes workspaces."""

    def check_alive(self) -> bool: ...

    def open_box(self, size_bytes: int) -> Awaitable[Workspace]: ...

    def close_box(self, name: str) -> Awaitable[None]: ...


class WorkspacePool:
    """Keeps one workspace ready, first of the initial size, then of the size requested last."""

    def __init__(self, maker: BoxMaker, size_bytes: int) -> None:
        self._maker = maker
        self._size_bytes = size_bytes
        self._spare: Workspace | None = None
        self._wanted = anyio.Event()

    async def take(self, size_bytes: int) -> Workspace:
        """Return an empty workspace; raises like `open_box` of the maker."""
        self._size_bytes = size_bytes
        spare = self._spare
        try:
            if spare is None or spare.size_bytes != size_bytes or not self._maker.check_alive():
                return await self._maker.open_box(size_bytes)
            self._spare = None
            return spare
        finally:
            self._wanted.set()

    def wake(self) -> None:
        """Wake `keep_filled`, so that it sees that the maker is gone."""
        self._wanted.set()

    async def keep_filled(self) -> None:
        """Keep a workspace ready until the maker is gone or refuses."""
        try:
            with suppress(SandboxUnavailableError):
                while self._maker.check_alive():
                    await self._wanted.wait()
                    self._wanted = anyio.Event()
                    # The caller has a program to run; creating a workspace now would slow it down.
                    await anyio.sleep(_HOLD_BACK_S)
                    await self.fill()
        finally:
            if self._spare is not None:
                os.close(self._spare.workspace)
                self._spare = None

    async def fill(self) -> None:
        """Create a workspace if there is none; raises like `open_box` of the maker."""
        if self._spare is not None and self._spare.size_bytes != self._size_bytes:
            box, self._spare = self._spare, None
            os.close(box.workspace)
            await self._maker.close_box(box.name)
        if self._spare is None:
            self._spare = await self._maker.open_box(self._size_bytes)
