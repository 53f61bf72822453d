"""Cells that were told to end: each is given back when its last process is gone, many at a time.

Nobody waits for this. Done in rounds, it takes one waking instead of one for each cell.
"""

import select
from types import TracebackType
from typing import Final, Self

import anyio

from assay.sandbox.native.host.jail import Jail

_ROUND_S: Final = 0.02
_MOST_AT_ONCE: Final = 100


class Reaper:
    """Cells between their kill and their burial."""

    def __init__(self) -> None:
        self._cells: list[Jail] = []
        self._wanted = anyio.Event()
        self._given_up = False

    def add(self, cell: Jail) -> None:
        """Have a cell given back: at its end, or at once if nobody waits for that any more."""
        if self._given_up:
            _bury(cell)
            return
        self._cells.append(cell)
        self._wanted.set()

    def wake(self) -> None:
        """Let whoever waits for a cell to bury look around."""
        self._wanted.set()

    async def bury_some(self) -> list[str]:
        """Wait until there is something to do, then give back what is dead; returns the slots."""
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
        """Give everything back, dead or dying: whoever keeps the cells is going too."""
        self._given_up = True
        for cell in self._cells:
            _bury(cell)
        self._cells = []


def _bury(cell: Jail) -> str:
    cell.close()
    cell.group.remove()
    return cell.slot
