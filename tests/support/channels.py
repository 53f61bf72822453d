"""Channels whose other side is in the hands of a test."""

import json
import os
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from assay.sandbox.native.host.messages import Channel


class Peer:
    """The other side of a channel, in the hands of a test."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self.end = end
        self.received: list[int] = []

    async def hear(self) -> dict[str, Any]:
        with anyio.fail_after(60):
            await anyio.wait_readable(self.end)
        message, descriptors, _, _ = socket.recv_fds(self.end, 4096, 16)
        self.received += descriptors
        return json.loads(message)

    def say(self, message: object, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self.end, [json.dumps(message).encode()], list(descriptors))

    async def echo(self, times: int) -> None:
        """Answer each question with itself."""
        for _ in range(times):
            self.say({"heard": await self.hear()})


@contextmanager
def a_channel() -> Generator[tuple[Channel, Peer]]:
    """A channel and its other side."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel, peer = Channel(ours), Peer(theirs)
    try:
        yield channel, peer
    finally:
        channel.close()
        theirs.close()
        for descriptor in peer.received:
            os.close(descriptor)


def open_descriptors() -> set[str]:
    """The descriptors of this process, by number."""
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}
