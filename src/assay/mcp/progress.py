"""Progress notifications of long calls: the elapsed time and the latest output."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import anyio

from assay.contracts.errors import AssayError
from assay.contracts.execution import OutputChunk
from assay.contracts.ports import OnOutput

ResultT = TypeVar("ResultT")

_EVERY_S: Final = 0.5
_MOST_BYTES: Final = 2000

Report = Callable[[float, float | None, str | None], Awaitable[None]]
"""Callback for progress, total and message; does nothing if the client requested no progress."""


async def with_progress(act: Callable[[OnOutput], Awaitable[ResultT]], tell: Report) -> ResultT:
    """Run a call with regular progress reports. Exceptions propagate unchanged."""
    progress = _Progress()
    outcome: list[ResultT | AssayError] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(progress.report, tell)
        try:
            outcome.append(await act(progress.hear))
        except AssayError as error:
            outcome.append(error)  # A task group would wrap the exception.
        tasks.cancel_scope.cancel()
    [result] = outcome
    if isinstance(result, AssayError):
        raise result
    return result


@dataclass(slots=True)
class _Progress:
    """Progress of one call. A client that reads slowly misses output, but not the end."""

    _unsaid: bytearray = field(default_factory=bytearray)

    def hear(self, chunk: OutputChunk) -> None:
        self._unsaid += chunk.data
        del self._unsaid[:-_MOST_BYTES]

    async def report(self, tell: Report) -> None:
        """Report at intervals until cancelled."""
        begun = anyio.current_time()
        while True:
            await anyio.sleep(_EVERY_S)
            said = self._unsaid.decode("utf-8", errors="replace")
            self._unsaid.clear()
            elapsed_s = anyio.current_time() - begun
            await tell(round(elapsed_s, 3), None, said or f"running for {elapsed_s:.0f} s")
