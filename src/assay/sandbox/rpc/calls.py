"""Concurrent, numbered calls over a connection; either side can start one.

`Exchange` is one call on one side: messages out, messages in, with flow control. The dispatcher
answers the other side's calls, each in a separate task. `CarriedStream` tunnels a network
connection through a call.
"""

import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import anyio
import anyio.abc
from google.protobuf.message import DecodeError, Message

from assay.contracts.errors import AssayError, SandboxUnavailableError
from assay.sandbox.rpc.connection import WINDOW_FRAMES, Link, LinkBrokenError
from assay.sandbox.rpc.messages import executor_pb2, relay_pb2
from assay.sandbox.rpc.messages import relay_pb2 as pb
from assay.sandbox.rpc.messages.codec import CHUNK_BYTES, MAX_MESSAGE_BYTES, MessageError
from assay.sandbox.rpc.messages.egress_pb2 import DialRequest, DialResponse
from assay.sandbox.rpc.messages.failures import from_failure, to_failure
from assay.sandbox.rpc.messages.methods import Method, Request, Response

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


_MOST_CALLS: Final = 4000


class RelayCaller:
    """See `assay.sandbox.rpc.client_sandbox.Caller`."""

    def __init__(self, link: Link, *, back: bool = False) -> None:
        self._link = link
        self._back = back
        self._last_call = 0
        self._calls: dict[int, Exchange | None] = {}
        """None marks a call that this side cancelled and the other side has not ended yet."""

    def lose(self) -> None:
        """Mark the connection as lost and inform every waiting call."""
        for exchange in self._calls.values():
            if exchange is not None:
                exchange.lose()

    def distrust(self, why: str) -> None:
        self._link.end(f"the other side sent what it could not: {why}")

    async def ask(
        self, method: Method[Request, Response], *requests: Request, timeout_s: float | None = None
    ) -> Response:
        try:
            with anyio.fail_after(timeout_s):
                async with self._call(method, requests) as answers:
                    async for answer in answers:
                        return answer
        except TimeoutError as error:
            raise SandboxUnavailableError(
                f"no answer to {method.name} within {timeout_s:g} s", dispatch="outcome_unknown"
            ) from error
        self.distrust(f"no answer to {method.name}")
        raise self._broken(sent=True)

    @asynccontextmanager
    async def stream(
        self, method: Method[Request, Response], request: Request
    ) -> AsyncGenerator[AsyncIterator[Response]]:
        async with self._call(method, (request,)) as answers:
            yield answers

    @asynccontextmanager
    async def _call(
        self, method: Method[Request, Response], requests: tuple[Request, ...]
    ) -> AsyncGenerator[AsyncIterator[Response]]:
        exchange = self._number()
        try:
            with self._translating(exchange):
                last = len(requests) - 1
                for number, request in enumerate(requests):
                    first = (self._begin(exchange, method),) if number == 0 else ()
                    await exchange.send(request, *first, last=number == last)
                async with aclosing(exchange.receive(method.response)) as answers:
                    yield answers
        finally:
            await self.give_up(exchange)

    async def converse(self, method: Method[Request, Response], request: Request) -> Exchange:
        """Start a call in which both sides keep sending; `give_up` ends it.

        Raises:
            SandboxUnavailableError: If the call cannot start.
        """
        exchange = self._number()
        try:
            with self._translating(exchange):
                await exchange.send(request, self._begin(exchange, method))
        except BaseException:
            await self.give_up(exchange)
            raise
        return exchange

    def _number(self) -> Exchange:
        if len(self._calls) >= _MOST_CALLS:
            raise SandboxUnavailableError("too many concurrent calls", dispatch="never_started")
        self._last_call += 1
        exchange = Exchange(self._link, self._last_call, asks=True, back=self._back)
        self._calls[exchange.call] = exchange
        return exchange

    def _begin(self, exchange: Exchange, method: Method[Request, Response]) -> pb.Frame:
        begin = pb.Begin(method=method.name)
        return pb.Frame(call=exchange.call, back=self._back, begin=begin)

    async def give_up(self, exchange: Exchange) -> None:
        """Inform the other side that this call is cancelled, unless it is over."""
        if exchange.call not in self._calls:
            return
        self._calls[exchange.call] = None
        frame = pb.Frame(call=exchange.call, back=self._back, stop=pb.Stop())
        with anyio.CancelScope(shield=True), suppress(LinkBrokenError):
            await self._link.send(frame)

    @contextmanager
    def _translating(self, exchange: Exchange) -> Generator[None]:
        try:
            yield
        except MessageError as error:
            self.distrust(str(error))
            raise self._broken(sent=True) from error
        except LinkBrokenError as error:
            raise self._broken(sent=exchange.sent) from error

    def _broken(self, *, sent: bool) -> SandboxUnavailableError:
        return SandboxUnavailableError(
            f"the sandbox is gone: {self._link.why}",
            dispatch="outcome_unknown" if sent else "never_started",
        )

    def take(self, frame: pb.Frame) -> None:
        """Pass a received frame to its call; must not wait."""
        if frame.call not in self._calls:
            # A grant may arrive after the call has ended.
            if frame.WhichOneof("body") == "grant" and 0 < frame.call <= self._last_call:
                return
            raise MessageError(f"there is no call {frame.call}")
        exchange = self._calls[frame.call]
        match frame.WhichOneof("body"):
            case "content":
                if exchange is not None:
                    exchange.take_content(frame.content)
            case "end":
                del self._calls[frame.call]
                if exchange is not None:
                    exchange.take_end(frame.end)
            case "grant":
                if exchange is not None:
                    exchange.take_grant(frame.grant)
            case other:
                raise MessageError(f"{other} is not a message to the calling side")


Answer = Callable[[Method[Any, Any], Exchange], Awaitable[None]]
"""Carries out one call: receives its requests and sends its answers."""

_log = logging.getLogger(__name__)


class Desk:
    """Receives the frames of calls that the other side started."""

    def __init__(
        self,
        link: Link,
        answer: Answer,
        tasks: anyio.abc.TaskGroup,
        *,
        methods: Iterable[Method[Any, Any]],
        most: int,
        back: bool = False,
    ) -> None:
        self._link = link
        self._answer = answer
        self._tasks = tasks
        self._methods = {method.name: method for method in methods}
        self._most = most
        self._back = back
        self._last_call = 0
        self._calls: dict[int, tuple[Exchange, anyio.CancelScope]] = {}

    def take(self, frame: pb.Frame) -> None:
        if frame.WhichOneof("body") == "begin":
            self._begin(frame)
            return
        if frame.call not in self._calls:
            if not 0 < frame.call <= self._last_call:
                raise MessageError(f"there was no call {frame.call}")
            return  # The call has just ended on this side.
        exchange, scope = self._calls[frame.call]
        match frame.WhichOneof("body"):
            case "content":
                exchange.take_content(frame.content)
            case "end":
                exchange.take_end(frame.end)
            case "grant":
                exchange.take_grant(frame.grant)
            case "stop":
                scope.cancel()
            case other:
                raise MessageError(f"{other} is not a message to the answering side")

    def _begin(self, frame: pb.Frame) -> None:
        method = self._methods.get(frame.begin.method)
        if method is None:
            raise MessageError(f"there is no method {frame.begin.method!r:.80}")
        if frame.call <= self._last_call or len(self._calls) >= self._most:
            raise MessageError(f"call {frame.call} cannot begin")
        self._last_call = frame.call
        exchange = Exchange(self._link, frame.call, asks=False, back=self._back)
        scope = anyio.CancelScope()
        self._calls[frame.call] = exchange, scope
        self._tasks.start_soon(self._carry_out, method, exchange, scope)

    async def _carry_out(
        self, method: Method[Any, Any], exchange: Exchange, scope: anyio.CancelScope
    ) -> None:
        failure = None
        try:
            with scope:
                await self._answer(method, exchange)
        except LinkBrokenError:
            return
        except Exception as error:  # noqa: BLE001 - every call is answered
            if not isinstance(error, AssayError | MessageError):
                _log.exception("a fault in %s", method.name)
            failure = to_failure(error)
        finally:
            del self._calls[exchange.call]
        with suppress(LinkBrokenError):
            await exchange.end(failure)


Piece = DialRequest | DialResponse
_BROKEN: Final = (LinkBrokenError, MessageError, AssayError)


class CarriedStream(anyio.abc.ByteStream):
    """Bytes both ways over one exchange; an empty message ends one direction."""

    def __init__(
        self,
        exchange: Exchange,
        incoming: type[DialRequest] | type[DialResponse],
        piece_of: Callable[[bytes], Piece],
    ) -> None:
        self._exchange = exchange
        self._incoming = exchange.receive(incoming)
        self._piece_of = piece_of
        self._rest = b""
        self._ended = False

    async def receive_first(self) -> Piece:
        """Return the first message of the other side.

        Raises:
            anyio.BrokenResourceError: If there is none.
        """
        return await self._next()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._ended:
            raise anyio.EndOfStream
        data = self._rest or (await self._next()).data
        if not data:
            self._ended = True
            raise anyio.EndOfStream
        self._rest = data[max_bytes:]
        return data[:max_bytes]

    async def _next(self) -> Piece:
        try:
            async for piece in self._incoming:
                return piece
        except _BROKEN as error:
            raise anyio.BrokenResourceError from error
        # The whole call has ended, not only this direction.
        raise anyio.BrokenResourceError

    async def send(self, item: bytes) -> None:
        if item:
            await self._send(item)

    async def send_eof(self) -> None:
        await self._send(b"")

    async def _send(self, data: bytes) -> None:
        try:
            await self._exchange.send(self._piece_of(data))
        except _BROKEN as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Do nothing; the stream ends with its call."""
