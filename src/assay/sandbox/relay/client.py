"""The near half of a relay: a backend at the other end of a stream of bytes."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import anyio
import anyio.abc

from assay.contracts.errors import SandboxUnavailableError
from assay.sandbox.relay.exchange import Exchange
from assay.sandbox.relay.far import FarBackend
from assay.sandbox.relay.link import Link, LinkBrokenError
from assay.wire import executor_pb2, methods
from assay.wire import relay_pb2 as pb
from assay.wire.methods import Method, Request, Response
from assay.wire.plain import MessageError

_PING_S: Final = 15.0
_SILENCE_S: Final = 60.0
_MOST_CALLS: Final = 4000


@asynccontextmanager
async def open_relay(
    stream: anyio.abc.ByteStream, *, greeting_s: float = 60.0
) -> AsyncGenerator[FarBackend]:
    """Use the backend at the other end of a stream; leaving the context closes the stream.

    Raises:
        SandboxUnavailableError: If nobody answers there, or not as a relay does.
    """
    link = Link(stream)
    caller = RelayCaller(link)
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.run)
        try:
            backend = await _greet(link, caller, greeting_s)
            tasks.start_soon(_keep_alive, link)
            yield backend
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            failure = error
        finally:
            link.end("the connection was closed on this side")
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _greet(link: Link, caller: "RelayCaller", greeting_s: float) -> FarBackend:
    try:
        with anyio.fail_after(greeting_s):
            await link.greet()
            capabilities = await caller.ask(
                methods.GET_CAPABILITIES, executor_pb2.GetCapabilitiesRequest()
            )
    except (TimeoutError, LinkBrokenError) as error:
        why = str(error) or f"no answer within {greeting_s:g} s"
        raise SandboxUnavailableError(
            f"the sandbox cannot be reached: {why}", dispatch="never_started"
        ) from error
    return FarBackend(caller, capabilities)


async def _keep_alive(link: Link) -> None:
    await link.keep_alive(every_s=_PING_S, silence_s=_SILENCE_S)


class RelayCaller:
    """See `assay.sandbox.relay.caller.Caller`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._last_call = 0
        self._calls: dict[int, Exchange | None] = {}
        """None stands for a call that was given up here and has not ended there."""

    async def run(self) -> None:
        """Carry frames until the link ends; then every call that waits is told."""
        try:
            await self._link.run(self._take)
        finally:
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
        if len(self._calls) >= _MOST_CALLS:
            raise SandboxUnavailableError("too many calls at once", dispatch="never_started")
        self._last_call += 1
        exchange = Exchange(self._link, self._last_call, asks=True)
        self._calls[exchange.call] = exchange
        try:
            with self._translating(exchange):
                await self._send(method, exchange, requests)
                async with aclosing(exchange.receive(method.response)) as answers:
                    yield answers
        finally:
            await self._give_up(exchange)

    async def _send(
        self, method: Method[Any, Any], exchange: Exchange, requests: tuple[Any, ...]
    ) -> None:
        begin = pb.Frame(call=exchange.call, begin=pb.Begin(method=method.name))
        last = len(requests) - 1
        for number, request in enumerate(requests):
            first = (begin,) if number == 0 else ()
            await exchange.send(request, *first, last=number == last)

    async def _give_up(self, exchange: Exchange) -> None:
        if exchange.call not in self._calls:
            return
        self._calls[exchange.call] = None
        with anyio.CancelScope(shield=True), suppress(LinkBrokenError):
            await self._link.send(pb.Frame(call=exchange.call, stop=pb.Stop()))

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

    def _take(self, frame: pb.Frame) -> None:
        if frame.call not in self._calls:
            # A grant may cross the end of its call.
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
                raise MessageError(f"{other} is not for a client")
