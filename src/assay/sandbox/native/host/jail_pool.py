"""Cells prepared ahead of need, so that an execution starts at once.

When they are used up faster than they can be made, each execution has one made for itself: the
pool is a head start, never a limit.
"""

import json
from collections import deque
from contextlib import suppress
from typing import Final

import anyio

from assay.contracts.errors import SandboxUnavailableError
from assay.sandbox.native.host.engine import Engine
from assay.sandbox.native.host.jail import Jail

_HOLD_BACK_S: Final = 0.01


class JailPool:
    """Waiting cells of one stage of an engine."""

    def __init__(self, engine: Engine, stage: int, size: int) -> None:
        self._engine = engine
        self._stage = stage
        self._size = size
        self.ready = stage == 0
        self._waiting: deque[Jail] = deque()
        self._wanted = anyio.Event()

    async def keep_filled(self) -> None:
        """Run for the life of the engine; ends with it."""
        if not self.ready:
            with suppress(SandboxUnavailableError):
                await self._engine.await_stage(self._stage)
                self.ready = True
        try:
            while self.ready and self._engine.alive:
                self._wanted = anyio.Event()
                await self._fill()
                await self._wanted.wait()
                # The execution that took a cell is running now; making one would slow it down.
                await anyio.sleep(_HOLD_BACK_S)
        finally:
            self.empty()

    async def _fill(self) -> None:
        # Whoever needs a cell next will hear why there is none.
        with suppress(SandboxUnavailableError):
            while len(self._waiting) < self._size:
                self._waiting.append(await self._engine.make_cell(self._stage, ahead=True))

    def wake(self) -> None:
        """Let whoever keeps it filled see that its engine is gone."""
        self._wanted.set()

    async def take(self) -> Jail:
        """Return a cell, waiting already or just being made.

        Raises:
            SandboxUnavailableError: If none can be made. Nothing has started.
        """
        if self._waiting:
            cell = self._waiting.popleft()
        else:
            cell = await self._engine.make_cell(self._stage, ahead=False)
        self._wanted.set()
        return cell

    def empty(self) -> None:
        while self._waiting:
            self._engine.discard(self._waiting.popleft())


async def await_readiness(cell: Jail) -> None:
    """Wait until the worker of a cell is locked in and waits for its program.

    Raises:
        SandboxUnavailableError: If it never will. Nothing has started.
    """
    text = b""
    while not text.endswith(b"\n"):
        piece = await cell.status.read()
        if not piece:
            raise SandboxUnavailableError("the sandbox died early", dispatch="never_started")
        text += piece
    report = json.loads(text.splitlines()[0])
    if "ready" not in report:
        raise SandboxUnavailableError(
            f"the sandbox could not be locked: {report}", dispatch="never_started"
        )
