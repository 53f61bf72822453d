"""Dispatcher of calls from the other side; a separate task answers each call."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc

from assay.contracts.errors import AssayError
from assay.sandbox.rpc.connection import Link, LinkBrokenError
from assay.sandbox.rpc.messages import relay_pb2 as pb
from assay.sandbox.rpc.messages.failures import to_failure
from assay.sandbox.rpc.messages.methods import Method
from assay.sandbox.rpc.messages.primitives import MessageError
from assay.sandbox.rpc.stream import Exchange

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
