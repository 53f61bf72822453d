"""Runs the HTTP server until a signal, then shuts it down gracefully."""

import gc
import logging
import signal
import socket
from collections.abc import Callable
from typing import Final

import anyio
import uvicorn
from starlette.types import ASGIApp

from assay.asyncx.listen import EmbeddedServer, is_loopback, listen, url_of
from assay.contracts.chat import ChatEvent
from assay.contracts.errors import UsageError
from assay.contracts.events import RunEvent
from assay.server.api.app import create_app, guarded
from assay.server.api.metrics import Metrics
from assay.server.api.middleware import RequestCompleted
from assay.server.api.slow_client import Connections, with_header_timeout
from assay.server.api.tracing import Tracing, open_tracing
from assay.server.app_state import ServerState, open_server
from assay.server.db.store import open_store
from assay.settings.load import Settings

_LOG: Final = logging.getLogger("assay.http")
_KEEP_ALIVE_S: Final = 15
_SELDOM: Final = 1000
"""Collections of the middle generation before one of the oldest."""


class ObserverGroup:
    """Forwards events to all observers."""

    def __init__(self, *watchers: Metrics | Tracing) -> None:
        self._watchers = watchers

    def dialogue_event(self, session: str, event: ChatEvent) -> None:
        for watcher in self._watchers:
            watcher.dialogue_event(session, event)

    def run_event(self, run: str, event: RunEvent) -> None:
        for watcher in self._watchers:
            watcher.run_event(run, event)

    def answered(self, answered: RequestCompleted) -> None:
        for watcher in self._watchers:
            watcher.answered(answered)


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
        watchers = ObserverGroup(metrics, *([tracing] if tracing else []))
        async with open_server(settings, open_to_local=open_to_local, watcher=watchers) as hosting:
            app = guarded(create_app(hosting, metrics), watchers.answered)
            announce(url_of(taken), hosting.backend)
            await _answer(hosting, app, metrics, taken)


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


async def _answer(
    hosting: ServerState, app: ASGIApp, metrics: Metrics, taken: socket.socket
) -> None:
    serve = hosting.settings.serve
    connections = Connections(
        most=serve.connections, most_per_address=serve.connections_per_address
    )
    config = uvicorn.Config(
        app,
        http=with_header_timeout(serve.patience_s, connections),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(serve.drain_s)),
        ws="none",
    )
    server = EmbeddedServer(config)
    _spare_the_collector()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_on_signal, server, hosting)
        tasks.start_soon(metrics.watch_loop)
        await server.serve(sockets=[taken])
        tasks.cancel_scope.cancel()


def _spare_the_collector() -> None:
    """Make full garbage collections rare, and exclude the objects that exist now.

    A full collection took a third of a second, in which the event loop was blocked.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _SELDOM)


async def _end_on_signal(server: uvicorn.Server, hosting: ServerState) -> None:
    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                if hosting.draining:
                    server.force_exit = server.should_exit = True
                    return
                _LOG.info("ending")
                tasks.start_soon(_drain, server, hosting)


async def _drain(server: uvicorn.Server, hosting: ServerState) -> None:
    """Wait for turns to end, then stop the server."""
    await hosting.drain()
    server.should_exit = True
