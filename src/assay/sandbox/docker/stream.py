"""Attached streams of a container as one byte stream, extracted from Docker's frames.

The Docker engine puts eight bytes before each piece: 1 for stdout or 2 for stderr, three zeros, and
the length. The end of stderr is stored separately, to explain why a container ended.
"""

import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import anyio.abc

_HEADER: Final = 8
_STDOUT, _STDERR = 1, 2
_KEPT_COMPLAINTS: Final = 4000
_CHUNK: Final = 1 << 18
_LARGEST_FRAME: Final = 1 << 26
_Wait = Callable[[socket.socket], Awaitable[None]]


class Demultiplexer:
    """Splits the Docker engine's frames; rejects data without a valid header."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.output: deque[bytes] = deque()
        self.complaints = b""

    def feed(self, data: bytes) -> None:
        """Process received bytes.

        Raises:
            anyio.BrokenResourceError: If they are not a valid frame of the Docker engine.
        """
        self._buffer += data
        while len(self._buffer) >= _HEADER:
            kind = self._buffer[0]
            length = int.from_bytes(self._buffer[4:_HEADER], "big")
            if kind not in {_STDOUT, _STDERR} or length > _LARGEST_FRAME:
                raise anyio.BrokenResourceError
            if len(self._buffer) < _HEADER + length:
                return
            payload = bytes(self._buffer[_HEADER : _HEADER + length])
            del self._buffer[: _HEADER + length]
            if kind == _STDERR:
                self.complaints = (self.complaints + payload)[-_KEPT_COMPLAINTS:]
            elif payload:
                self.output.append(payload)


class ContainerStream(anyio.abc.ByteStream):
    """Stdin and stdout of a container. One reader and one writer at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = Demultiplexer()
        self._closed = False

    @property
    def complaints(self) -> str:
        """Return the end of stderr so far."""
        return self._frames.complaints.decode(errors="replace").strip()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._frames.output:
            data = await self._receive_raw()
            if not data:
                raise anyio.EndOfStream
            self._frames.feed(data)
        piece = self._frames.output.popleft()
        if len(piece) > max_bytes:
            self._frames.output.appendleft(piece[max_bytes:])
            piece = piece[:max_bytes]
        return piece

    async def _receive_raw(self) -> bytes:
        while True:
            self._check_open()
            try:
                return self._connection.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError):
                await self._wait(anyio.wait_readable)
            except ssl.SSLWantWriteError:
                await self._wait(anyio.wait_writable)
            except OSError as error:
                raise anyio.BrokenResourceError from error

    async def send(self, item: bytes) -> None:
        rest = memoryview(item)
        while rest:
            self._check_open()
            try:
                rest = rest[self._connection.send(rest) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                await self._wait(anyio.wait_writable)
            except ssl.SSLWantReadError:
                await self._wait(anyio.wait_readable)
            except OSError as error:
                raise anyio.BrokenResourceError from error

    async def _wait(self, until: _Wait) -> None:
        await until(self._connection)

    async def send_eof(self) -> None:
        """Close the container's stdin."""
        self._check_open()
        try:
            self._connection.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            # Wakes up waiting readers: nothing more will arrive.
            anyio.notify_closing(self._connection)
            self._connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
