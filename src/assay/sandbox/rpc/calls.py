"""Concurrent, numbered calls over a connection; either side can start one."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Final

import anyio

from assay.contracts.errors import SandboxUnavailableError
from assay.sandbox.rpc.connection import Link, LinkBrokenError
from assay.sandbox.rpc.messages import relay_pb2 as pb
from assay.sandbox.rpc.messages.methods import Method, Request, Response
from assay.sandbox.rpc.messages.primitives import MessageError
from assay.sandbox.rpc.stream import Exchange

_MOST_CALLS: Final = 4000


class RelayCaller:
    """See `assay.sandbox.rpc.transport.Caller`."""

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
