"""One call on one side of a connection: messages out, messages in, with flow control."""

from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

import anyio
from google.protobuf.message import DecodeError, Message

from assay.contracts.errors import AssayError
from assay.sandbox.rpc.connection import Link, LinkBrokenError
from assay.sandbox.rpc.messages import executor_pb2, relay_pb2
from assay.sandbox.rpc.messages.codec import CHUNK_BYTES, MAX_MESSAGE_BYTES
from assay.sandbox.rpc.messages.failures import from_failure
from assay.sandbox.rpc.messages.frames import WINDOW_FRAMES
from assay.sandbox.rpc.messages.methods import Response
from assay.sandbox.rpc.messages.primitives import MessageError

_GRANTED_AT_ONCE: Final = WINDOW_FRAMES // 2


class Exchange:
    """The frames of one call, both ways."""

    def __init__(self, link: Link, call: int, *, asks: bool, back: bool = False) -> None:
        self.call = call
        self._asks = asks
        self._back = back
        self._link = link
        self._window = WINDOW_FRAMES
        self._granted = anyio.Event()
        self._inbox: deque[relay_pb2.Content] = deque()
        self._arrived = anyio.Event()
        self._ended = False
        self._failure: AssayError | None = None
        self._lost = False
        self._taken = 0
        self.sent = False
        """Whether the other side may have seen any part of this call."""

    def take_content(self, content: relay_pb2.Content) -> None:
        if self._ended or len(self._inbox) >= WINDOW_FRAMES:
            raise MessageError("more content than was asked for")
        self._inbox.append(content)
        self._arrived.set()

    def take_end(self, end: relay_pb2.End) -> None:
        if self._ended:
            raise MessageError("a call ended twice")
        self._ended = True
        if end.HasField("failure"):
            self._failure = from_failure(end.failure)
        self._arrived.set()
        self._granted.set()

    def take_grant(self, grant: relay_pb2.Grant) -> None:
        self._window += grant.frames
        if self._window > WINDOW_FRAMES:
            raise MessageError("more was granted than was used")
        self._granted.set()

    def lose(self) -> None:
        """Mark the connection as lost."""
        self._lost = True
        self._arrived.set()
        self._granted.set()

    async def send(self, message: Message, *first: relay_pb2.Frame, last: bool = False) -> None:
        """Send a message in as many frames as it needs, after the given frames.

        Raises:
            LinkBrokenError: If the connection is lost.
        """
        body = message.SerializeToString()
        if len(body) > MAX_MESSAGE_BYTES:
            raise MessageError(f"a message of {len(body)} bytes")
        frames = [*first]
        for begin in range(0, max(1, len(body)), CHUNK_BYTES):
            while not self._window:
                await self._flush(frames)
                if self._asks and self._ended:
                    return  # The other side has answered without reading to the end.
                self._granted = anyio.Event()
                await self._granted.wait()
            self._window -= 1
            end = begin + CHUNK_BYTES
            content = relay_pb2.Content(data=body[begin:end], more=end < len(body))
            frames.append(relay_pb2.Frame(call=self.call, back=self._back, content=content))
        if last:
            frames.append(relay_pb2.Frame(call=self.call, back=self._back, end=relay_pb2.End()))
        await self._flush(frames)

    async def end(self, failure: executor_pb2.Failure | None = None) -> None:
        """Inform the other side that this side sends nothing more."""
        end = relay_pb2.End(failure=failure)
        await self._link.send(relay_pb2.Frame(call=self.call, back=self._back, end=end))

    async def _flush(self, frames: list[relay_pb2.Frame]) -> None:
        if self._lost:
            raise LinkBrokenError(self._link.why)
        if frames:
            # The start must be certain: after an uncertain start, stopping the call would be
            # undefined.
            with anyio.CancelScope(shield=self._asks and not self.sent):
                await self._link.send(*frames)
            self.sent = True
            frames.clear()

    async def receive(self, kind: type[Response]) -> AsyncGenerator[Response]:
        """Yield the messages of the other side until it ends them.

        Raises:
            AssayError: If the other side ended the call with an error.
            MessageError: If a message has the wrong type.
            LinkBrokenError: If the connection is lost.
        """
        body = bytearray()
        while True:
            content = await self._next()
            if content is None:
                return
            body += content.data
            if len(body) > MAX_MESSAGE_BYTES:
                raise MessageError(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
            if not content.more:
                yield _decode(kind, bytes(body))
                body.clear()

    async def _next(self) -> relay_pb2.Content | None:
        while not self._inbox:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return None
            if self._lost:
                raise LinkBrokenError(self._link.why)
            self._arrived = anyio.Event()
            await self._arrived.wait()
        self._taken += 1
        if self._taken == _GRANTED_AT_ONCE:
            self._taken = 0
            if not self._ended:
                grant = relay_pb2.Grant(frames=_GRANTED_AT_ONCE)
                frame = relay_pb2.Frame(call=self.call, back=self._back, grant=grant)
                await self._link.send(frame)
        return self._inbox.popleft()


def _decode(kind: type[Response], body: bytes) -> Response:
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise MessageError(f"not a {kind.__name__}") from error
