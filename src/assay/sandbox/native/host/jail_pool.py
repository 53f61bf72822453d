"""Jails prepared ahead of need, so that an execution starts without delay.

If jails are used faster than they are prepared, each execution gets a new one: the pool is never a
limit.
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
    """The prepared jails of one stage of an engine."""

    def __init__(self, engine: Engine, stage: int, size: int) -> None:
        self._engine = engine
        self._stage = stage
        self._size = size
        self.ready = stage == 0
        self._waiting: deque[Jail] = deque()
        self._wanted = anyio.Event()

    async def keep_filled(self) -> None:
        """Keep the pool filled until the engine closes."""
        if not self.ready:
            with suppress(SandboxUnavailableError):
                await self._engine.await_stage(self._stage)
                self.ready = True
        try:
            while self.ready and self._engine.alive:
                self._wanted = anyio.Event()
                await self._fill()
                await self._wanted.wait()
                # The execution that took a jail is running; preparing another now would slow it
                # down.
                await anyio.sleep(_HOLD_BACK_S)
        finally:
            self.empty()

    async def _fill(self) -> None:
        # The next `take` reports the reason.
        with suppress(SandboxUnavailableError):
            while len(self._waiting) < self._size:
                self._waiting.append(await self._engine.make_cell(self._stage, ahead=True))

    def wake(self) -> None:
        """Wake `keep_filled`, so that it sees that the engine is gone."""
        self._wanted.set()

    async def take(self) -> Jail:
        """Return a prepared jail or create one.

        Raises:
            SandboxUnavailableError: If no jail can be created. Nothing has started.
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
    """Wait until the worker of a jail is confined and waits for its program.

    Raises:
        SandboxUnavailableError: If the worker fails. Nothing has started.
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
