"""The whole service: opened once, asked by every request, drained at its end."""

import logging
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import anyio

from assay.agent.dialogue.seats import open_seats
from assay.contracts.errors import JournalError
from assay.hosting.access import Access, Keys
from assay.hosting.conversations import Begun, Conversations
from assay.hosting.feeding import Feeds
from assay.hosting.lending import open_shared
from assay.hosting.memories import Memories
from assay.hosting.quotas import Quotas
from assay.hosting.records import AuditEntry, Caller
from assay.hosting.runs import Runs
from assay.hosting.store import Store, open_store
from assay.hosting.warming import warm_up
from assay.hosting.watching import NOBODY, Watcher
from assay.settings import Settings

_LOG: Final = logging.getLogger(__name__)
_AUDIT: Final = logging.getLogger("assay.audit")
_FLUSH_S: Final = 1.0


@dataclass(slots=True, kw_only=True)
class Hosting:
    """What requests are answered with."""

    settings: Settings
    store: Store
    access: Access
    keys: Keys
    quotas: Quotas
    feeds: Feeds
    conversations: Conversations
    runs: Runs
    memories: Memories
    backend: str
    """By name."""
    draining: bool = False

    async def begin_turn(self, caller: Caller, session_id: str, message: str) -> Begun:
        """Let the model answer a message, if there is something left of what the caller may use.

        Raises:
            RefusedError: If there is not, or as `Conversations.begin_turn` raises it.
            AssayError: As it raises them.
        """
        await self.quotas.check_spending(caller)
        return await self.conversations.begin_turn(caller, session_id, message)

    async def audit(
        self, caller: Caller, action: str, target: str = "", *, outcome: str = "done", request: str
    ) -> None:
        """Write down that somebody did something, or was kept from it.

        Raises:
            JournalError: If it cannot be: what is not written down is not done.
        """
        entry = AuditEntry(
            id=secrets.token_hex(8),
            at=time.time(),
            user=caller.user,
            key_id=caller.key_id,
            action=action,
            target=target,
            outcome=outcome,
            request_id=request,
        )
        await self.store.add_audit(entry)
        told = {"user": caller.user, "action": action, "target": target, "outcome": outcome}
        _AUDIT.info("audit", extra={**told, "request_id": request})

    async def drain(self) -> None:
        """Let what is under way come to its end, for as long as the settings allow."""
        self.draining = True
        self.feeds.close_all()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.runs.drain)
            await self.conversations.drain(self.settings.serve.drain_s)
        await self.quotas.flush()

    async def flush_now_and_then(self) -> None:
        """Write counts down, once a second."""
        while True:
            await anyio.sleep(_FLUSH_S)
            try:
                await self.quotas.flush()
            except JournalError as error:
                _LOG.warning("requests were not counted: %s", error)


@asynccontextmanager
async def open_hosting(
    settings: Settings, *, open_to_local: bool, watcher: Watcher = NOBODY
) -> AsyncGenerator[Hosting]:
    """Open the service; what a crash has left unfinished is taken up first.

    Raises:
        IsolationUnavailableError: If this machine cannot isolate as the settings ask.
        JournalError: If the database does not answer.
        MissingExtraError: If a part is not installed.
    """
    serve = settings.serve
    url = serve.database.get_secret_value() if serve.database else ""
    async with (
        open_store(settings.state_dir, url) as store,
        open_shared(settings, _LOG.info) as shared,
        open_seats() as tasks,
    ):
        feeds, quotas = Feeds(), Quotas(store)
        conversations = Conversations(settings, store, shared, feeds, quotas, tasks)
        conversations.listener = watcher.dialogue_event
        runs = Runs(settings, store, shared.backend, feeds, quotas, tasks)
        runs.listener = watcher.run_event
        hosting = Hosting(
            settings=settings,
            store=store,
            access=Access(store, serve.quota, open_to_local=open_to_local),
            keys=Keys(store),
            quotas=quotas,
            feeds=feeds,
            conversations=conversations,
            runs=runs,
            memories=Memories(settings),
            backend=shared.backend.name,
        )
        await warm_up()
        await conversations.recover()
        await runs.recover()
        tasks.start_soon(hosting.flush_now_and_then)
        yield hosting
