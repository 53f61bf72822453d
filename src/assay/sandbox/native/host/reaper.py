"""Releases the resources of killed jails after their last process is dead, in batches.

No caller waits for this. A batch needs one wakeup instead of one per jail.
"""

import select
from types import TracebackType
from typing import Final, Self

import anyio

from assay.sandbox.native.host.jail import Jail

_ROUND_S: Final = 0.02
_MOST_AT_ONCE: Final = 100


class Reaper:
    """Killed jails whose resources are not released yet."""

    def __init__(self) -> None:
        self._cells: list[Jail] = []
        self._wanted = anyio.Event()
        self._given_up = False

    def add(self, cell: Jail) -> None:
        """Release a jail after its death, or immediately if the reaper has closed."""
        if self._given_up:
            _bury(cell)
            return
        self._cells.append(cell)
        self._wanted.set()

    def wake(self) -> None:
        """Wake `bury_some`."""
        self._wanted.set()

    async def bury_some(self) -> list[str]:
        """Wait for killed jails, release the dead ones, and return their slots."""
        if not self._cells:
            self._wanted = anyio.Event()
            await self._wanted.wait()
        await anyio.sleep(_ROUND_S)
        ended = select.poll()
        for cell in self._cells[:_MOST_AT_ONCE]:
            ended.register(cell.pidfd, select.POLLIN)
        dead = {pidfd for pidfd, _ in ended.poll(0)}
        buried = [cell for cell in self._cells if cell.pidfd in dead]
        self._cells = [cell for cell in self._cells if cell.pidfd not in dead]
        return [_bury(cell) for cell in buried]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        """Release all jails, dead or not: the engine is closing."""
        self._given_up = True
        for cell in self._cells:
            _bury(cell)
        self._cells = []


def _bury(cell: Jail) -> str:
    cell.close()
    cell.group.remove()
    return cell.slot
