"""Runs the HTTP server until a signal, then shuts it down gracefully.

The number of connections is limited, and so is the time until the request headers arrive.
"""

import asyncio
import gc
import logging
import signal
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from assay.asyncx.listen import EmbeddedServer, is_loopback, listen, url_of
from assay.asyncx.owned_context import open_task_group
from assay.contracts.errors import UsageError
from assay.server.api.app import create_app, guarded
from assay.server.api.middleware import RequestCompleted
from assay.server.api.monitoring import Metrics, open_tracing
from assay.server.api.problems import Fault, problem
from assay.server.app_state import ServerState, open_server
from assay.server.db.store import open_store
from assay.settings.load import Settings

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


def with_header_timeout(
    client_timeout_s: float, connections: Connections
) -> type[HttpToolsProtocol]:
    """Return a protocol that waits this long for the headers of a request."""

    class Impatient(HttpToolsProtocol):
        _waiting: asyncio.TimerHandle | None = None
        _address = ""
        _client_timeout_s = client_timeout_s

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._address = self.client[0] if self.client else ""
            if fault := connections.enter(self._address):
                self.app = _refusing(fault)
                self._client_timeout_s = min(client_timeout_s, _SHORT_S)
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
            self._waiting = self.loop.call_later(self._client_timeout_s, transport.close)

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


_LOG: Final = logging.getLogger("assay.http")
_KEEP_ALIVE_S: Final = 15
_SELDOM: Final = 1000
"""Collections of the middle generation before one of the oldest."""


Announce = Callable[[str, str], None]
"""Callback that receives the address and the isolation of the service."""


async def serve(settings: Settings, announce: Announce) -> None:
    """Serve until SIGINT or SIGTERM; a second signal ends the process without a grace period.

    Raises:
        UsageError: If other machines could connect without keys, or the port is taken.
        AssayError: If a component of the service cannot be opened.
    """
    await check_reachable(settings)
    taken = listen(settings.serve.host, settings.serve.port)
    open_to_local = is_loopback(settings.serve.host) and not settings.serve.require_keys
    traced = open_tracing(settings.serve.otlp_endpoint, content=settings.serve.trace_content)
    with taken, traced as tracing:
        metrics = Metrics()
        observers = [metrics, *([tracing] if tracing else [])]

        def note(completed: RequestCompleted) -> None:
            for observer in observers:
                observer.note_request(completed)

        async with open_server(
            settings, open_to_local=open_to_local, observers=observers
        ) as server:
            app = guarded(create_app(server, metrics), note)
            announce(url_of(taken), server.backend)
            await _answer(server, app, metrics, taken)


async def check_reachable(settings: Settings) -> None:
    """Refuse to listen for other machines without API keys.

    Raises:
        UsageError: If other machines could connect without keys.
    """
    if is_loopback(settings.serve.host) or settings.serve.api_key is not None:
        return
    database = settings.serve.database
    async with open_store(
        settings.state_dir, database.get_secret_value() if database else ""
    ) as store:
        if not await store.has_keys():
            raise UsageError(
                f"every client that reaches {settings.serve.host} could run programs here",
                hint="create a key first: `assay keys create NAME --role admin`, or set API_KEY",
            )


async def _answer(state: ServerState, app: ASGIApp, metrics: Metrics, taken: socket.socket) -> None:
    serve = state.settings.serve
    connections = Connections(
        most=serve.connections, most_per_address=serve.connections_per_address
    )
    config = uvicorn.Config(
        app,
        http=with_header_timeout(serve.client_timeout_s, connections),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(serve.shutdown_grace_s)),
        ws="none",
    )
    server = EmbeddedServer(config)
    # Make full garbage collections rare, and exclude the objects that exist now. A full collection
    # took a third of a second, in which the event loop was blocked.
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _SELDOM)
    async with open_task_group() as tasks:
        tasks.start_soon(_end_on_signal, server, state)
        tasks.start_soon(metrics.watch_loop)
        await server.serve(sockets=[taken])


async def _end_on_signal(server: uvicorn.Server, state: ServerState) -> None:
    async def drain() -> None:
        await state.drain()
        server.should_exit = True

    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                if state.draining:
                    server.force_exit = server.should_exit = True
                    return
                _LOG.info("ending")
                # Turns end before the server stops.
                tasks.start_soon(drain)
