"""State of the server: opened once, shared by all requests, drained at shutdown.

Also the interface of observers, which receive the events of all users, and the health of the
components that the service needs: database, executor and model.
"""

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import anyio

from assay.asyncx.owned_context import open_task_group
from assay.contracts.chat import CellStarted, ChatEvent, ToolUsed, TurnEnded
from assay.contracts.errors import AssayError, JournalError
from assay.contracts.events import RunEvent
from assay.contracts.execution import Limits
from assay.contracts.ports import SandboxBackend, trouble_of
from assay.server.auth import ApiKeys, Authenticator
from assay.server.db.models import AuditEntry, Caller
from assay.server.db.store import Store, open_store
from assay.server.services.audit_log import log
from assay.server.services.chat_service import ChatService
from assay.server.services.event_stream import EventStreams, Subscriptions
from assay.server.services.quotas import Quotas
from assay.server.services.run_service import RunService
from assay.server.services.shared_resources import open_shared, warm_up
from assay.settings.load import Settings


class Observer(Protocol):
    """Receives every event of sessions and runs, in the event loop. Must not block."""

    def on_event(self, target: str, event: ChatEvent | RunEvent) -> None:
        """Handle an event of the session or run with this id."""
        ...


Component = Literal["database", "executor", "model"]
COMPONENTS: Final[tuple[Component, ...]] = ("database", "executor", "model")

_FRESH_S: Final = 10.0
"""Cache time of the executor's result: a check opens a sandbox."""
_WAIT_S: Final = 10.0
_PAID: Final = frozenset({"e2b"})
"""Backends whose sandboxes cost money: the health check opens none."""
_OF_MODEL: Final = frozenset({"model-unavailable", "model-rate-limited", "model-refused"})


class Health:
    """Checks components on demand, and remembers the model's last result."""

    def __init__(self, store: Store, backend: SandboxBackend) -> None:
        self._store = store
        self._backend = backend
        self._checking = anyio.Lock()
        self._checked_at: float | None = None
        self._executor = ""
        self._model = ""

    async def troubles(self) -> dict[Component, str]:
        """Return the problem of each component; an empty text if there is none."""
        return {
            "database": await self._database_trouble(),
            "executor": await self._executor_trouble(),
            "model": self._model,
        }

    def on_event(self, target: str, event: ChatEvent | RunEvent) -> None:
        """Learn from the events of sessions whether the model answers."""
        del target
        match event:
            case CellStarted() | ToolUsed():
                self._model = ""
            case TurnEnded(error=None):
                if event.status in {"answered", "out_of_steps"}:
                    self._model = ""
            case TurnEnded(error=error) if error is not None:
                if error.type in _OF_MODEL:
                    self._model = error.detail
                elif error.type == "executor-unavailable":
                    # Force the next check to look again, regardless of the cache.
                    self._checked_at = None
            case _:
                pass

    async def _database_trouble(self) -> str:
        try:
            with anyio.fail_after(_WAIT_S):
                await self._store.check()
        except AssayError as error:
            return str(error)
        except TimeoutError:
            return f"no answer within {_WAIT_S:g} s"
        return ""

    async def _executor_trouble(self) -> str:
        if (trouble := trouble_of(self._backend)) or self._backend.name in _PAID:
            return trouble
        async with self._checking:
            at = self._checked_at
            if at is None or time.monotonic() - at > _FRESH_S:
                self._executor = await self._open_sandbox()
                self._checked_at = time.monotonic()
            return self._executor

    async def _open_sandbox(self) -> str:
        try:
            with anyio.fail_after(_WAIT_S):
                async with self._backend.open_sandbox(Limits()):
                    return ""
        except AssayError as error:
            return str(error)
        except TimeoutError:
            return f"no sandbox within {_WAIT_S:g} s"


_LOG: Final = logging.getLogger(__name__)
_FLUSH_S: Final = 1.0


@dataclass(slots=True, kw_only=True)
class ServerState:
    """Services and shared resources of the server."""

    settings: Settings
    store: Store
    access: Authenticator
    keys: ApiKeys
    quotas: Quotas
    streams: EventStreams
    chats: ChatService
    runs: RunService
    health: Health
    subscriptions: Subscriptions
    backend: str
    """By name of the user."""
    draining: bool = False

    async def audit(
        self, caller: Caller, action: str, target: str = "", *, outcome: str = "done", request: str
    ) -> None:
        """Write an entry to the audit log.

        Raises:
            JournalError: If it cannot be written; the caller must then not act.
        """
        entry = AuditEntry(
            user=caller.user,
            key_id=caller.key_id,
            action=action,
            target=target,
            outcome=outcome,
            request_id=request,
        )
        await self.store.add_audit(entry)
        log(entry)

    async def audit_rejected(self, authorization: str, address: str, *, request: str) -> None:
        """Log a request without a valid key; the key itself is never logged."""
        found = await self.access.revoked(authorization)
        entry = AuditEntry(
            user=found.user if found else "",
            key_id=found.id if found else "",
            action="key.reject",
            target=address,
            outcome="revoked" if found else "unknown" if authorization else "missing",
            request_id=request,
        )
        await self.store.add_audit(entry)
        log(entry)

    async def drain(self) -> None:
        """Stop runs, and wait for turns to end, within the grace period of the settings."""
        self.draining = True
        self.streams.close_all()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.runs.drain)
            await self.chats.drain(self.settings.serve.shutdown_grace_s)
        await self.quotas.flush()

    async def flush_now_and_then(self) -> None:
        """Once a second, store usage counts and end the streams of revoked keys."""
        while True:
            await anyio.sleep(_FLUSH_S)
            try:
                await self.quotas.flush()
                await self.subscriptions.end_revoked()
            except JournalError as error:
                _LOG.warning("requests were not counted: %s", error)


@asynccontextmanager
async def open_server(
    settings: Settings, *, open_to_local: bool, observers: Sequence[Observer] = ()
) -> AsyncGenerator[ServerState]:
    """Open the server state; recover first what a crash left unfinished.

    Raises:
        IsolationUnavailableError: If this machine cannot provide the isolation.
        JournalError: If the database does not answer.
        MissingExtraError: If a dependency is not installed.
    """
    serve = settings.serve
    url = serve.database.get_secret_value() if serve.database else ""
    async with (
        open_store(settings.state_dir, url) as store,
        open_shared(settings, _LOG.info) as shared,
        open_task_group() as tasks,
    ):
        streams, quotas, health = EventStreams(), Quotas(store), Health(store, shared.backend)
        listeners = (health, *observers)

        def on_event(target: str, event: ChatEvent | RunEvent) -> None:
            for listener in listeners:
                listener.on_event(target, event)

        chats = ChatService(settings, store, shared, streams, quotas, tasks, on_event)
        runs = RunService(settings, store, shared.backend, streams, quotas, tasks, on_event)
        server = ServerState(
            settings=settings,
            store=store,
            access=Authenticator(
                store,
                serve.quota,
                open_to_local=open_to_local,
                api_key=serve.api_key.get_secret_value() if serve.api_key else "",
            ),
            keys=ApiKeys(store),
            quotas=quotas,
            streams=streams,
            chats=chats,
            runs=runs,
            health=health,
            subscriptions=Subscriptions(store),
            backend=shared.backend.name,
        )
        await warm_up()
        await chats.recover()
        await runs.recover()
        tasks.start_soon(server.flush_now_and_then)
        yield server
