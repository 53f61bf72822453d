"""A relay between two halves of one process, to be used as any other backend."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from assay.contracts.ports import SandboxBackend
from assay.sandbox.rpc.stream_client import open_relay
from assay.sandbox.rpc.stream_server import serve_relay


async def connected_streams() -> tuple[anyio.abc.SocketStream, anyio.abc.SocketStream]:
    """Return the two ends of a connection."""
    near, far = socket.socketpair()
    return (
        await anyio.abc.SocketStream.from_socket(near),
        await anyio.abc.SocketStream.from_socket(far),
    )


@asynccontextmanager
async def open_relayed(backend: SandboxBackend) -> AsyncGenerator[SandboxBackend]:
    """Open a relay that leads to a backend of this process."""
    near, far = await connected_streams()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_relay, backend, far)
        async with open_relay(near) as relayed:
            yield relayed
