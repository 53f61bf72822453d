"""Forwarding of bytes between a program and a host, within a quota."""

from dataclasses import dataclass
from typing import Final

import anyio
import anyio.abc

_CHUNK: Final = 1 << 16
_IDLE_S: Final = 120.0


@dataclass(slots=True, kw_only=True)
class TrafficQuota:
    """The remaining network quota of a sandbox."""

    connections: int = 64
    """The maximum number of concurrent connections."""
    carried_bytes: int = 1 << 30
    """The maximum number of bytes, both directions together."""

    def take_connection(self) -> bool:
        if self.connections <= 0:
            return False
        self.connections -= 1
        return True

    def give_back_connection(self) -> None:
        self.connections += 1

    def take_bytes(self, count: int) -> bool:
        self.carried_bytes -= count
        return self.carried_bytes >= 0


async def carry(
    here: anyio.abc.ByteStream, there: anyio.abc.ByteStream, allowance: TrafficQuota
) -> bool:
    """Forward both ways until both ends finish or fall silent; False if the quota is used up."""
    within = True

    async with anyio.create_task_group() as tasks:

        async def pump(source: anyio.abc.ByteStream, sink: anyio.abc.ByteStream) -> None:
            nonlocal within
            try:
                while True:
                    data = await source.receive(_CHUNK)
                    within = allowance.take_bytes(len(data))
                    if not within:
                        break
                    tasks.cancel_scope.deadline = anyio.current_time() + _IDLE_S
                    await sink.send(data)
            except anyio.EndOfStream:
                # One side has finished sending; the other may continue.
                await _send_eof(sink)
                return
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                pass
            tasks.cancel_scope.cancel()

        tasks.cancel_scope.deadline = anyio.current_time() + _IDLE_S
        tasks.start_soon(pump, here, there)
        tasks.start_soon(pump, there, here)
    return within


async def _send_eof(sink: anyio.abc.ByteStream) -> None:
    try:
        await sink.send_eof()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        return
