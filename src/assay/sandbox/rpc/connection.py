"""Connection of two processes over a byte stream: encodes, sends, splits and checks frames."""

import struct
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Final

import anyio
import anyio.abc
from google.protobuf.message import DecodeError

from assay.sandbox.rpc.messages import relay_pb2 as pb
from assay.sandbox.rpc.messages.codec import CHUNK_BYTES, MessageError

VERSION: Final = 1
MAX_FRAME_BYTES: Final = CHUNK_BYTES + 16_384
"""The largest piece of content with its envelope; also fits an error with a long message."""
WINDOW_FRAMES: Final = 32
"""How many content frames may be in transit in one direction of a call."""

_LENGTH: Final = struct.Struct("!I")


def encode(frame: pb.Frame) -> bytes:
    """Return the bytes of a frame on the stream."""
    body = frame.SerializeToString()
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Splits a byte stream into frames. Buffers at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Generator[pb.Frame]:
        """Yield the frames that are now complete.

        Raises:
            MessageError: If the bytes are not a frame, or the frame is too large.
        """
        self._buffer += data
        begin = 0
        try:
            while len(self._buffer) - begin >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._buffer, begin)
                if size > MAX_FRAME_BYTES:
                    raise MessageError(f"a frame of {size} bytes")
                end = begin + _LENGTH.size + size
                if len(self._buffer) < end:
                    return
                body = bytes(self._buffer[begin + _LENGTH.size : end])
                begin = end
                yield _decode(body)
        finally:
            del self._buffer[:begin]


def _decode(body: bytes) -> pb.Frame:
    try:
        frame = pb.Frame.FromString(body)
    except DecodeError as error:
        raise MessageError("not a frame") from error
    if frame.WhichOneof("body") is None:
        raise MessageError("an empty frame")
    return frame


_SENT_AT_ONCE: Final = 64
_READ_BYTES: Final = 1 << 16

OnFrame = Callable[[pb.Frame], None]
"""Receives each frame, in order. Must not block; `MessageError` ends the connection."""


class ConnectionLostError(Exception):
    """The frame was not sent because the connection has ended."""


class Connection:
    """Sends and receives frames until either side ends the connection or breaks the protocol."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self._stream = stream
        self._outgoing, self._to_send = anyio.create_memory_object_stream[bytes](0)
        self._greeted = anyio.Event()
        self._heard = anyio.Event()
        self._pong_due = anyio.Event()
        self._scope = anyio.CancelScope()
        self.why = "the connection ended"
        """Why the connection ended."""

    async def send(self, *frames: pb.Frame) -> None:
        """Queue frames to be written next to each other, after earlier frames.

        Raises:
            ConnectionLostError: If no frame will be written.
        """
        try:
            await self._outgoing.send(b"".join(map(encode, frames)))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ConnectionLostError(self.why) from error

    def end(self, why: str) -> None:
        """End the connection from this side."""
        if not self._scope.cancel_called:
            self.why = why
            self._scope.cancel()

    async def run(self, on_frame: OnFrame) -> None:
        """Transfer frames until the connection ends, then close the stream. Never raises."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._write)
                    tasks.start_soon(self._return_pings)
                    await self._read(on_frame)
                    tasks.cancel_scope.cancel()
        finally:
            self._to_send.close()
            self._outgoing.close()
            self._greeted.set()
            with anyio.CancelScope(shield=True), suppress(OSError, anyio.BrokenResourceError):
                with anyio.move_on_after(1):
                    await self._stream.aclose()

    async def greet(self) -> None:
        """Send this side's greeting and wait for the greeting of the other side.

        Raises:
            ConnectionLostError: If no greeting arrives.
        """
        await self.send(pb.Frame(hello=pb.Hello(version=VERSION)))
        await self._greeted.wait()
        if self._scope.cancel_called:
            raise ConnectionLostError(self.why)

    async def keep_alive(self, *, every_s: float, silence_s: float) -> None:
        """Send a ping after each silent period, and end the connection if no reply arrives."""
        while True:
            self._heard = anyio.Event()
            await anyio.sleep(every_s)
            if self._heard.is_set():
                continue
            with anyio.move_on_after(silence_s), suppress(ConnectionLostError):
                await self.send(pb.Frame(ping=pb.Ping()))
                await self._heard.wait()
            if not self._heard.is_set():
                self.end(f"the other side has said nothing for {every_s + silence_s:g} s")
                return

    async def _read(self, on_frame: OnFrame) -> None:
        reader = FrameReader()
        try:
            while True:
                data = await self._stream.receive(_READ_BYTES)
                self._heard.set()
                for frame in reader.feed(data):
                    self._take(frame, on_frame)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self.end("the other side has ended the connection")
        except MessageError as error:
            self.end(f"the other side sent what it could not: {error}")

    def _take(self, frame: pb.Frame, on_frame: OnFrame) -> None:
        match frame.WhichOneof("body"):
            case "hello":
                if self._greeted.is_set() or frame.hello.version != VERSION:
                    raise MessageError(f"greeted with version {frame.hello.version}")
                self._greeted.set()
            case _ if not self._greeted.is_set():
                raise MessageError("no greeting")
            case "ping":
                self._pong_due.set()
            case "pong":
                pass
            case _:
                on_frame(frame)

    async def _return_pings(self) -> None:
        # Not in the frame reader: it must never wait for the other side.
        while True:
            await self._pong_due.wait()
            self._pong_due = anyio.Event()
            with suppress(ConnectionLostError):
                await self.send(pb.Frame(pong=pb.Pong()))

    async def _write(self) -> None:
        try:
            while True:
                pending = [await self._to_send.receive()]
                with suppress(anyio.WouldBlock):
                    while len(pending) < _SENT_AT_ONCE:
                        pending.append(self._to_send.receive_nowait())
                await self._stream.send(b"".join(pending))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self.end("the other side takes nothing any more")
