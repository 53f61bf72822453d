"""Concurrent, numbered calls over a connection; either side can start one.

`Exchange` is one call on one side: messages out, messages in, with flow control. The dispatcher
answers the other side's calls, each in a separate task. `Tunnel` carries a network
connection through a call.
"""

import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, cast

import anyio
import anyio.abc
from google.protobuf.message import DecodeError, Message

from assay.contracts.errors import AssayError, SandboxUnavailableError
from assay.sandbox.rpc.connection import WINDOW_FRAMES, Connection, ConnectionLostError
from assay.sandbox.rpc.messages import executor_pb2
from assay.sandbox.rpc.messages import relay_pb2 as pb
from assay.sandbox.rpc.messages.codec import CHUNK_BYTES, MAX_MESSAGE_BYTES, MessageError
from assay.sandbox.rpc.messages.egress_pb2 import DialRequest, DialResponse
from assay.sandbox.rpc.messages.failures import from_failure, to_failure
from assay.sandbox.rpc.messages.methods import Method, Request, Response

_GRANTED_AT_ONCE: Final = WINDOW_FRAMES // 2


class Exchange:
    """The frames of one call, both ways."""

    def __init__(
        self, connection: Connection, call: int, *, asks: bool, back: bool = False
    ) -> None:
        self.call = call
        self._asks = asks
        self._back = back
        self._connection = connection
        self._window = WINDOW_FRAMES
        self._granted = anyio.Event()
        self._inbox: deque[pb.Content] = deque()
        self._arrived = anyio.Event()
        self._ended = False
        self._failure: AssayError | None = None
        self._lost = False
        self._taken = 0
        self.sent = False
        """Whether the other side may have seen any part of this call."""

    def take(self, frame: pb.Frame) -> None:
        """Receive a frame of the other side; must not wait."""
        match frame.WhichOneof("body"):
            case "content":
                if self._ended or len(self._inbox) >= WINDOW_FRAMES:
                    raise MessageError("more content than was asked for")
                self._inbox.append(frame.content)
                self._arrived.set()
            case "end":
                if self._ended:
                    raise MessageError("a call ended twice")
                self._ended = True
                if frame.end.HasField("failure"):
                    self._failure = from_failure(frame.end.failure)
                self._arrived.set()
                self._granted.set()
            case "grant":
                self._window += frame.grant.frames
                if self._window > WINDOW_FRAMES:
                    raise MessageError("more was granted than was used")
                self._granted.set()
            case other:
                side = "calling" if self._asks else "answering"
                raise MessageError(f"{other} is not a message to the {side} side")

    def frame(self, **body: Message) -> pb.Frame:
        """Return a frame of this call."""
        return pb.Frame(call=self.call, back=self._back, **cast("Any", body))

    def lose(self) -> None:
        """Mark the connection as lost."""
        self._lost = True
        self._arrived.set()
        self._granted.set()

    async def send(self, message: Message, *first: pb.Frame, last: bool = False) -> None:
        """Send a message in as many frames as it needs, after the given frames.

        Raises:
            ConnectionLostError: If the connection is lost.
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
            content = pb.Content(data=body[begin:end], more=end < len(body))
            frames.append(self.frame(content=content))
        if last:
            frames.append(self.frame(end=pb.End()))
        await self._flush(frames)

    async def end(self, failure: executor_pb2.Failure | None = None) -> None:
        """Inform the other side that this side sends nothing more."""
        await self._connection.send(self.frame(end=pb.End(failure=failure)))

    async def _flush(self, frames: list[pb.Frame]) -> None:
        if self._lost:
            raise ConnectionLostError(self._connection.why)
        if frames:
            # The start must be certain: after an uncertain start, stopping the call would be
            # undefined.
            with anyio.CancelScope(shield=self._asks and not self.sent):
                await self._connection.send(*frames)
            self.sent = True
            frames.clear()

    async def receive(self, kind: type[Response]) -> AsyncGenerator[Response]:
        """Yield the messages of the other side until it ends them.

        Raises:
            AssayError: If the other side ended the call with an error.
            MessageError: If a message has the wrong type.
            ConnectionLostError: If the connection is lost.
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

    async def _next(self) -> pb.Content | None:
        while not self._inbox:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return None
            if self._lost:
                raise ConnectionLostError(self._connection.why)
            self._arrived = anyio.Event()
            await self._arrived.wait()
        self._taken += 1
        if self._taken == _GRANTED_AT_ONCE:
            self._taken = 0
            if not self._ended:
                grant = pb.Grant(frames=_GRANTED_AT_ONCE)
                await self._connection.send(self.frame(grant=grant))
        return self._inbox.popleft()


def _decode(kind: type[Response], body: bytes) -> Response:
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise MessageError(f"not a {kind.__name__}") from error


_MOST_CALLS: Final = 4000


class StreamTransport:
    """See `assay.sandbox.rpc.client_sandbox.Transport`."""

    def __init__(self, connection: Connection, *, back: bool = False) -> None:
        self._connection = connection
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
        self._connection.end(f"the other side sent what it could not: {why}")

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
                begin = pb.Begin(method=method.name)
                last = len(requests) - 1
                for number, request in enumerate(requests):
                    first = (exchange.frame(begin=begin),) if number == 0 else ()
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
                await exchange.send(request, exchange.frame(begin=pb.Begin(method=method.name)))
        except BaseException:
            await self.give_up(exchange)
            raise
        return exchange

    def _number(self) -> Exchange:
        if len(self._calls) >= _MOST_CALLS:
            raise SandboxUnavailableError("too many concurrent calls", dispatch="never_started")
        self._last_call += 1
        exchange = Exchange(self._connection, self._last_call, asks=True, back=self._back)
        self._calls[exchange.call] = exchange
        return exchange

    async def give_up(self, exchange: Exchange) -> None:
        """Inform the other side that this call is cancelled, unless it is over."""
        if exchange.call not in self._calls:
            return
        self._calls[exchange.call] = None
        with anyio.CancelScope(shield=True), suppress(ConnectionLostError):
            await self._connection.send(exchange.frame(stop=pb.Stop()))

    @contextmanager
    def _translating(self, exchange: Exchange) -> Generator[None]:
        try:
            yield
        except MessageError as error:
            self.distrust(str(error))
            raise self._broken(sent=True) from error
        except ConnectionLostError as error:
            raise self._broken(sent=exchange.sent) from error

    def _broken(self, *, sent: bool) -> SandboxUnavailableError:
        return SandboxUnavailableError(
            f"the sandbox is gone: {self._connection.why}",
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
        if frame.WhichOneof("body") == "end":
            del self._calls[frame.call]
        if exchange is not None:
            exchange.take(frame)


Answer = Callable[[Method[Any, Any], Exchange], Awaitable[None]]
"""Carries out one call: receives its requests and sends its answers."""

_log = logging.getLogger(__name__)


class Dispatcher:
    """Receives the frames of calls that the other side started."""

    def __init__(
        self,
        connection: Connection,
        answer: Answer,
        tasks: anyio.abc.TaskGroup,
        *,
        methods: Iterable[Method[Any, Any]],
        most: int,
        back: bool = False,
    ) -> None:
        self._connection = connection
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
        if frame.WhichOneof("body") == "stop":
            scope.cancel()
        else:
            exchange.take(frame)

    def _begin(self, frame: pb.Frame) -> None:
        method = self._methods.get(frame.begin.method)
        if method is None:
            raise MessageError(f"there is no method {frame.begin.method!r:.80}")
        if frame.call <= self._last_call or len(self._calls) >= self._most:
            raise MessageError(f"call {frame.call} cannot begin")
        self._last_call = frame.call
        exchange = Exchange(self._connection, frame.call, asks=False, back=self._back)
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
        except ConnectionLostError:
            return
        except Exception as error:  # noqa: BLE001 - every call is answered
            if not isinstance(error, AssayError | MessageError):
                _log.exception("a fault in %s", method.name)
            failure = to_failure(error)
        finally:
            del self._calls[exchange.call]
        with suppress(ConnectionLostError):
            await exchange.end(failure)


Piece = DialRequest | DialResponse
_BROKEN: Final = (ConnectionLostError, MessageError, AssayError)


class Tunnel(anyio.abc.ByteStream):
    """Bytes both ways over one exchange; an empty message ends one direction."""

    def __init__(
        self,
        exchange: Exchange,
        incoming: type[DialRequest] | type[DialResponse],
        piece_of: Callable[[bytes], Piece],
        *,
        on_close: Callable[[Exchange], Awaitable[None]] | None = None,
    ) -> None:
        self._exchange = exchange
        self._incoming = exchange.receive(incoming)
        self._piece_of = piece_of
        self._on_close = on_close
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
        """End the call, if this side began it; otherwise the stream ends with its call."""
        if self._on_close is not None:
            await self._on_close(self._exchange)
