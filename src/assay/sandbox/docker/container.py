"""Life of one container: creation, attached streams, end and removal.

The Docker engine puts eight bytes before each piece of an attached stream: 1 for stdout or 2 for
stderr, three zeros, and the length. The end of stderr is stored separately, to explain why a
container ended.
"""

import secrets
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
import anyio.abc

from assay.sandbox.docker.engine import Engine, EngineError
from assay.sandbox.docker.security import question_config

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


_ANSWER_WITHIN_S: Final = 60.0
_LONGEST_ANSWER: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A running container with its attached stream."""

    id: str
    name: str
    stream: ContainerStream


async def start_container(engine: Engine, config: Mapping[str, Any]) -> Container:
    """Create a container, attach its streams and start it. Removes it if a step fails.

    Raises:
        EngineError: If the Docker engine refuses.
    """
    name = f"assay-{secrets.token_hex(6)}"
    made = await engine.create(name, config)
    try:
        # Attached before the start, so that no output is lost and the container never runs
        # unattached.
        stream = ContainerStream(await engine.attach(made))
        try:
            await engine.start(made)
        except BaseException:
            await stream.aclose()
            raise
    except BaseException:
        with anyio.CancelScope(shield=True):
            await engine.remove(made)
        raise
    return Container(id=made, name=name, stream=stream)


async def end_container(engine: Engine, container: Container) -> None:
    """Kill a container and wait until it is removed."""
    with anyio.CancelScope(shield=True):
        await container.stream.aclose()
        await engine.remove(container.id)


@asynccontextmanager
async def open_container(engine: Engine, config: Mapping[str, Any]) -> AsyncGenerator[Container]:
    """Start a container and end it with the context."""
    container = await start_container(engine, config)
    try:
        yield container
    finally:
        await end_container(engine, container)


async def ask_image(engine: Engine, image: str, argv: Sequence[str]) -> str:
    """Run one short program in an image and return its output.

    Raises:
        EngineError: If the program does not exist or does not end.
    """
    heard = b""
    try:
        with anyio.fail_after(_ANSWER_WITHIN_S):
            async with open_container(engine, question_config(image, argv)) as container:
                try:
                    while len(heard) < _LONGEST_ANSWER:
                        heard += await container.stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    pass
    except TimeoutError:
        raise EngineError(f"{argv[0]!r} of the image {image!r} does not answer") from None
    if not heard:
        raise EngineError(
            f"{argv[0]!r} of the image {image!r} says nothing: {container.stream.complaints}"
        )
    return heard.decode(errors="replace")
