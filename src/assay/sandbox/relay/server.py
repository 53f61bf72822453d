"""The far half of a relay: serves a backend to whoever is at the other end of a stream."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final

import anyio
import anyio.abc

from assay.contracts.errors import AssayError
from assay.contracts.ports import SandboxBackend
from assay.sandbox.relay.exchange import Exchange
from assay.sandbox.relay.keeper import Keeper
from assay.sandbox.relay.link import Link, LinkBrokenError
from assay.wire import relay_pb2 as pb
from assay.wire.failures import to_failure
from assay.wire.methods import METHODS, Method
from assay.wire.plain import MessageError

_MOST_CALLS: Final = 4096
_BY_NAME: Final = {method.name: method for method in METHODS}

_log = logging.getLogger(__name__)


async def serve_relay(backend: SandboxBackend, stream: anyio.abc.ByteStream) -> None:
    """Serve one client until its stream ends; what it has opened ends with it."""
    link = Link(stream)
    async with _open_keeper(backend) as keeper, anyio.create_task_group() as tasks:
        desk = _Desk(link, keeper, tasks)

        async def greet() -> None:
            with suppress(LinkBrokenError):
                await link.greet()

        tasks.start_soon(greet)
        await link.run(desk.take)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _open_keeper(backend: SandboxBackend) -> AsyncGenerator[Keeper]:
    async with anyio.create_task_group() as tasks:
        keeper = Keeper(backend, tasks)
        try:
            yield keeper
        finally:
            with anyio.CancelScope(shield=True):
                await keeper.close()
            tasks.cancel_scope.cancel()


class _Desk:
    """Takes frames in, and has each call answered by a task of its own."""

    def __init__(self, link: Link, keeper: Keeper, tasks: anyio.abc.TaskGroup) -> None:
        self._link = link
        self._keeper = keeper
        self._tasks = tasks
        self._last_call = 0
        self._calls: dict[int, tuple[Exchange, anyio.CancelScope]] = {}

    def take(self, frame: pb.Frame) -> None:
        if frame.WhichOneof("body") == "begin":
            self._begin(frame)
            return
        if frame.call not in self._calls:
            if not 0 < frame.call <= self._last_call:
                raise MessageError(f"there was no call {frame.call}")
            return  # It has just ended on this side.
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
                raise MessageError(f"{other} is not for a server")

    def _begin(self, frame: pb.Frame) -> None:
        method = _BY_NAME.get(frame.begin.method)
        if method is None:
            raise MessageError(f"there is no method {frame.begin.method!r:.80}")
        if frame.call <= self._last_call or len(self._calls) >= _MOST_CALLS:
            raise MessageError(f"call {frame.call} cannot begin")
        self._last_call = frame.call
        exchange, scope = Exchange(self._link, frame.call, asks=False), anyio.CancelScope()
        self._calls[frame.call] = exchange, scope
        self._tasks.start_soon(self._answer, method, exchange, scope)

    async def _answer(
        self, method: Method[Any, Any], exchange: Exchange, scope: anyio.CancelScope
    ) -> None:
        failure = None
        try:
            with scope:
                requests = exchange.receive(method.request)
                async with aclosing(self._keeper.answer(method, requests)) as answers:
                    async for answer in answers:
                        await exchange.send(answer)
        except LinkBrokenError:
            return
        except Exception as error:  # noqa: BLE001 - every call is answered, and a fault is told apart
            if not isinstance(error, AssayError | MessageError):
                _log.exception("a fault in %s", method.name)
            failure = to_failure(error)
        finally:
            del self._calls[exchange.call]
        with suppress(LinkBrokenError):
            await exchange.end(failure)
