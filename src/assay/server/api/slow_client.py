"""Limits on connections: their number, and the time until the request headers arrive.

uvicorn waits for headers without a timeout. Its own cap answers in plain text and does not count
addresses.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from assay.server.api.problems import Fault, problem

_SHORT_S: Final = 2.0
"""Time that a connection beyond the cap has for its request before it is closed."""
_FULL: Final = Fault(status=503, kind="overloaded", detail="Too many connections.")
_SHARE: Final = Fault(
    status=503,
    kind="overloaded",
    detail="Too many connections from this address.",
    hint="The limit is `serve.connections_per_address`.",
)


@dataclass(slots=True, kw_only=True)
class Connections:
    """Open connections, by address."""

    most: int
    most_per_address: int
    by_address: Counter[str] = field(default_factory=Counter[str])

    def enter(self, address: str) -> Fault | None:
        """Count a connection; return the reason if it exceeds a cap."""
        self.by_address[address] += 1
        if self.by_address[address] > self.most_per_address:
            return _SHARE
        return _FULL if self.by_address.total() > self.most else None

    def leave(self, address: str) -> None:
        """Remove a closed connection."""
        self.by_address[address] -= 1
        if self.by_address[address] <= 0:
            del self.by_address[address]


def with_header_timeout(patience_s: float, connections: Connections) -> type[HttpToolsProtocol]:
    """Return a protocol that waits this long for the headers of a request."""

    class Impatient(HttpToolsProtocol):
        _waiting: asyncio.TimerHandle | None = None
        _address = ""
        _patience_s = patience_s

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._address = self.client[0] if self.client else ""
            if fault := connections.enter(self._address):
                self.app = _refusing(fault)
                self._patience_s = min(patience_s, _SHORT_S)
            self._wait(transport)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._wait(self.transport)

        def on_headers_complete(self) -> None:
            self._stop_waiting()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            connections.leave(self._address)
            super().connection_lost(exc)

        def _wait(self, transport: Any) -> None:
            self._stop_waiting()
            self._waiting = self.loop.call_later(self._patience_s, transport.close)

        def _stop_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

    return Impatient


def _refusing(fault: Fault) -> ASGIApp:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        response = problem(fault, request_id="", path=scope["path"])
        response.headers["connection"] = "close"
        await response(scope, receive, send)

    return refuse
