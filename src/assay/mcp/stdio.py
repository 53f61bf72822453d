"""MCP server over standard input and output, for clients that start it themselves."""

import logging
import os
import select
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing, contextmanager
from typing import Any, Final

import anyio
import anyio.lowlevel
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

_CHUNK: Final = 1 << 16
_LOG: Final = logging.getLogger(__name__)


async def serve_stdio(server: Server[Any], *, line_bytes: int) -> None:
    """Serve the client until it closes its end, or until SIGINT or SIGTERM.

    A client that has exited counts as one that closed its end.
    """
    try:
        await _serve(server, line_bytes)
    except* (BrokenPipeError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        _LOG.info("the client is gone")


async def _serve(server: Server[Any], line_bytes: int) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_on_signal, tasks.cancel_scope)
        with _input_apart() as descriptor:
            # The SDK reads in a thread, which cannot be interrupted: a stopping server would wait
            # for one more line.
            lines: Any = _Lines(descriptor, line_bytes)
            async with stdio_server(stdin=lines) as (reading, writing):
                await server.run(reading, writing, server.create_initialization_options())
        tasks.cancel_scope.cancel()


async def _cancel_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


@contextmanager
def _input_apart() -> Generator[int]:
    """Replace standard input for the rest of this process, because it carries the protocol."""
    descriptor = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        yield descriptor
    finally:
        os.dup2(descriptor, 0)
        os.close(descriptor)


def _can_be_watched(descriptor: int) -> bool:
    """Whether an event loop can poll a descriptor: not a regular file, nor /dev/null."""
    with select.epoll() as watch:
        try:
            watch.register(descriptor, select.EPOLLIN)
        except PermissionError:
            return False
    return True


class _Lines:
    """Lines of a descriptor, read without a thread, which could not be interrupted."""

    def __init__(self, descriptor: int, most_bytes: int) -> None:
        self._descriptor = descriptor
        self._most_bytes = most_bytes
        self._can_wait = _can_be_watched(descriptor)

    async def __aiter__(self) -> AsyncIterator[str]:
        buffer = bytearray()
        too_long = False
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                *whole, rest = chunk.split(b"\n")
                for part in whole:
                    buffer += part
                    if not too_long and buffer.strip():
                        yield buffer.decode("utf-8", errors="replace")
                    buffer.clear()
                    too_long = False
                buffer += rest
                if len(buffer) > self._most_bytes and not too_long:
                    # Passed on as an unreadable message; the rest of the line is skipped.
                    yield "a line that is too long"
                    too_long = True
                if too_long:
                    buffer.clear()

    async def _chunks(self) -> AsyncGenerator[bytes]:
        while True:
            if self._can_wait:
                await anyio.wait_readable(self._descriptor)
            chunk = os.read(self._descriptor, _CHUNK)
            if not chunk:
                return
            yield chunk
            await anyio.lowlevel.checkpoint()
