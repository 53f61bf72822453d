"""Chat sessions of all users: opened on demand, shared by requests, closed when idle.

A turn makes two transactions: the first one reserves quota and marks the session as busy, the
second one counts the usage, marks the session as free and writes the audit log.
"""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

import anyio
import anyio.abc
from anyio import to_thread

from assay.chat.open_session import ChatResources, open_chat_session
from assay.chat.session import ChatSession
from assay.contracts.chat import (
    CellStarted,
    ChatEvent,
    FileLoaded,
    History,
    ToolUsed,
    Turn,
    TurnEnded,
    TurnStarted,
    TurnUndone,
    cut_off_cell,
    is_passing,
)
from assay.contracts.errors import AssayError, JournalError
from assay.contracts.messages import Usage
from assay.server.auth import settings_of
from assay.server.db.models import AuditEntry, Caller, Page, SessionRow
from assay.server.db.store import AUDIT, SESSIONS, Store, count_usage
from assay.server.errors import RequestRejectedError, not_found
from assay.server.services.audit_log import NewEntry, TurnAudit, log, post
from assay.server.services.event_stream import EventStream, EventStreams, StreamKey
from assay.server.services.quotas import (
    Quotas,
    daily_usage,
    drop_abandoned,
    new_turn_hold,
    reserve,
    settle,
)
from assay.server.services.session_worker import Job, SessionWorker
from assay.settings.load import Settings
from assay.storage.chat_store import Session, SessionRecord, SessionStore
from assay.text.sql_tables import Statements

T = TypeVar("T")
Listener = Callable[[str, ChatEvent], None]
"""Callback for every event, with the id of its session."""

_LOG: Final = logging.getLogger(__name__)
_WAIT_FOR_ROOM_S: Final = 120.0
_TITLE_CHARS: Final = 80
_CUT_OFF: Final = "The service ended while this turn was under way."


@dataclass(slots=True, kw_only=True)
class TurnHandle:
    """A turn, from its request to its end."""

    caller: Caller
    row: SessionRow
    message: str
    instructions: str
    created: AuditEntry | None
    """The entry for a session that starts with this turn."""
    worker: SessionWorker
    chat: ChatSession
    job: Job[TurnEnded] = field(init=False)
    number: int = 0
    before: Usage = field(default_factory=Usage)
    """Usage of the session before the turn."""

    @property
    def session_id(self) -> str:
        return self.row.id

    async def finish(self) -> tuple[Turn, Usage]:
        """Wait for the end of the turn; return it with its results, and its usage."""
        await self.job.wait()
        history = self.chat.history
        turn = next(turn for turn in history.turns if turn.number == self.number)
        return turn, history.usage - self.before


class ChatService:
    """Operations on sessions. Each user can access only their own."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        shared: ChatResources,
        streams: EventStreams,
        quotas: Quotas,
        tasks: anyio.abc.TaskGroup,
        listener: Listener = lambda _session, _event: None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._shared = shared
        self._streams = streams
        self._quotas = quotas
        self._tasks = tasks
        self._listener = listener
        self._workers: dict[StreamKey, SessionWorker] = {}
        self._audits: dict[StreamKey, TurnAudit] = {}
        """Audit entries of running turns."""
        self._opening = anyio.Lock()
        self._freed = anyio.Event()

    @property
    def open_count(self) -> int:
        return len(self._workers)

    @property
    def busy_count(self) -> int:
        return sum(worker.busy for worker in self._workers.values())

    async def create(self, user: str, title: str = "", model: str = "") -> SessionRow:
        """Create a session; raises `JournalError` if it cannot be written."""
        row = await self._new_row(user, title, model)
        await self._store.put_session(row)
        return row

    async def _new_row(self, user: str, title: str, model: str) -> SessionRow:
        session = await to_thread.run_sync(self._sessions(user).create, title)
        return SessionRow(
            id=session.id,
            user=user,
            title=title,
            created_at=session.created_at,
            updated_at=session.created_at,
            model=model,
        )

    async def list(self, user: str, page: Page) -> tuple[SessionRow, ...]:
        return await self._store.sessions(user, page)

    async def find(self, user: str, session_id: str) -> SessionRow:
        """Return a session of this user.

        Raises:
            RequestRejectedError: If the user has no such session.
        """
        row = await self._store.session(user, session_id)
        if row is None:
            raise not_found("session", session_id)
        worker = self._workers.get(_key(user, session_id))
        return replace(row, busy=worker is not None and worker.busy)

    async def rename(self, user: str, session_id: str, title: str) -> SessionRow:
        row = await self.find(user, session_id)
        await to_thread.run_sync(self._sessions(user).rename, session_id, title)
        row = replace(row, title=title)
        await self._store.put_session(row)
        return row

    async def delete(self, user: str, session_id: str) -> None:
        """Delete a session with all its files.

        Raises:
            RequestRejectedError: If there is none, or a turn of it is running.
        """
        await self.find(user, session_id)
        await self._delete(_key(user, session_id))

    async def _delete(self, key: StreamKey) -> None:
        async with self._opening:
            if worker := self._workers.get(key):
                await worker.settled()
                if worker.busy:
                    raise RequestRejectedError("a turn of this session is under way", why="busy")
                worker.close()
                await worker.ended.wait()
            await to_thread.run_sync(self._sessions(key.user).delete, key.id)
            await self._store.delete_session(key.user, key.id)
        self._streams.close(key)

    async def begin_turn(
        self,
        caller: Caller,
        message: str,
        *,
        session_id: str | None,
        model: str = "",
        instructions: str = "",
        request_id: str = "",
    ) -> TurnHandle:
        """Start the model's answer to a message; return when the turn has started.

        Without a session id, this creates a session with the model.

        Raises:
            RequestRejectedError: If there is no such session, another turn of it is running, or the
                quota does not allow another turn.
            AssayError: If a required component cannot be opened.
        """
        created: AuditEntry | None = None
        if session_id is None:
            await self._quotas.check_left(caller)
            row = await self._new_row(caller.user, "", model)
            created = AuditEntry(
                user=caller.user,
                key_id=caller.key_id,
                action="session.create",
                target=row.id,
                outcome="done",
                request_id=request_id,
            )
        else:
            row = await self.find(caller.user, session_id)
        row = replace(row, key_id=caller.key_id)
        try:
            if session_id is not None:
                await self._quotas.check_left(caller)
            worker, chat = await self._open(caller.user, row)
            turn = TurnHandle(
                caller=caller,
                row=row,
                message=message,
                instructions=instructions,
                created=created,
                worker=worker,
                chat=chat,
            )
            turn.job = worker.submit(partial(self._run_turn, turn))
            await turn.job.started.wait()
            if turn.job.error is not None:
                raise turn.job.error
        except AssayError as error:
            outcome = error.why if isinstance(error, RequestRejectedError) else "failed"
            post(self._store, self._new_entry(row)(action="turn.run", outcome=outcome))
            if created is not None:
                with suppress(AssayError):
                    await self._delete(_key(row.user, row.id))
            raise
        return turn

    async def _run_turn(self, turn: TurnHandle, chat: ChatSession) -> TurnEnded:
        """Run one turn, and count its usage."""
        history, model, row = chat.history, chat.model, turn.row
        turn.number, turn.before = history.begun + 1, history.usage
        requested = new_turn_hold(turn.caller, turn.message)
        held_model = self._quotas.held(model, turn.caller, requested.id)
        turn.row = row = replace(
            row,
            title=row.title or " ".join(turn.message.split())[:_TITLE_CHARS],
            turns=turn.number,
            updated_at=time.time(),
            model=model.name,
            busy=True,
        )

        def begin(db: Statements) -> None:
            reserve(db, turn.caller, requested)
            SESSIONS.put(db, row)
            if turn.created is not None:
                AUDIT.add(db, turn.created)

        await self._store.transact(begin)
        if turn.created is not None:
            log(turn.created)
        key = _key(row.user, row.id)
        audit = self._audits[key] = TurnAudit(self._new_entry(row))
        try:
            turn.job.started.set()
            chat.model = held_model
            return await chat.say(turn.message, turn.instructions)
        finally:
            chat.model = model
            del self._audits[key]
            # A listener may start the next turn as soon as it sees the end of this one.
            turn.worker.settling = True
            with anyio.CancelScope(shield=True):
                await self._settle(turn, requested.id, audit.entries)

    async def _settle(self, turn: TurnHandle, hold_id: str, entries: Sequence[AuditEntry]) -> None:
        """Count the usage of a turn, write its audit entries, and mark the session as free."""
        row, now = turn.row, time.time()
        used = daily_usage(row.key_id, turn.chat.history.usage - turn.before)

        def write(db: Statements) -> None:
            settle(db, hold_id, used, at=now)
            free = "UPDATE assay_sessions SET updated_at = ?, busy = 0 WHERE user_id = ? AND id = ?"
            db.run(free, (now, row.user, row.id))
            for entry in entries:
                AUDIT.add(db, entry)

        try:
            await turn.chat.log.settle()
            await self._store.transact(write)
        except JournalError as error:
            _LOG.error("a turn could not be noted: %s", error)
        self._freed.set()

    async def load(
        self, user: str, session_id: str, path: PurePosixPath, content: bytes
    ) -> FileLoaded:
        """Add a file to the workspace of a session; raises like `begin_turn`."""

        async def load(chat: ChatSession) -> FileLoaded:
            loaded = await chat.load(path, content)
            await chat.log.settle()
            return loaded

        return await self._do(user, session_id, load)

    async def undo(self, user: str, session_id: str) -> TurnUndone:
        """Undo the last turn; raises like `begin_turn`."""
        return await self._do(user, session_id, lambda chat: chat.undo())

    async def _do(
        self, user: str, session_id: str, work: Callable[[ChatSession], Awaitable[T]]
    ) -> T:
        row = await self.find(user, session_id)
        worker, _ = await self._open(user, row)
        value = await worker.submit(work).wait()
        await self._store.put_session(replace(row, updated_at=time.time()))
        return value

    async def interrupt(self, user: str, session_id: str) -> bool:
        """Interrupt the running turn; return False if there is none.

        Raises:
            RequestRejectedError: If there is no such session.
        """
        await self.find(user, session_id)
        worker = self._workers.get(_key(user, session_id))
        if worker is None or not worker.busy:
            return False
        worker.interrupt()
        return True

    @asynccontextmanager
    async def stream(self, user: str, session_id: str) -> AsyncGenerator[EventStream]:
        """Open the event stream of a session.

        Raises:
            RequestRejectedError: If there is no such session.
        """
        folder = await self.folder(user, session_id)
        async with self._streams.hold(_key(user, session_id), folder) as stream:
            yield stream

    async def folder(self, user: str, session_id: str) -> Path:
        """Return the folder of a session.

        Raises:
            RequestRejectedError: If there is none.
        """
        row = await self.find(user, session_id)
        return self._sessions(user).folder / row.id

    async def recover(self) -> None:
        """Record the end, the usage and the audit entries of each turn that a crash interrupted."""
        for row in await self._store.busy_sessions():
            used, audit = Usage(), TurnAudit(self._new_entry(row), is_live=False)
            with suppress(AssayError):
                session = await to_thread.run_sync(self._sessions(row.user).open, row.id)
                async with SessionRecord(session.folder) as record:
                    events = [event for event in record.events if _turn_of(event) == row.turns]
                    for event in events:
                        audit.on_event(event)
                    has_started = any(isinstance(event, TurnStarted) for event in events)
                    if has_started and not any(isinstance(event, TurnEnded) for event in events):
                        if cell := cut_off_cell(reduce(History.after, record.events, History())):
                            record.emit(cell)
                        end = TurnEnded(
                            turn=row.turns, status="interrupted", text=_CUT_OFF, usage=Usage()
                        )
                        record.emit(end)
                        audit.on_event(end)
                    steps = (
                        event
                        for event in events
                        if isinstance(event, CellStarted | ToolUsed | TurnEnded)
                    )
                    used = sum((step.usage for step in steps), Usage())

            def write(
                db: Statements,
                row: SessionRow = row,
                used: Usage = used,
                entries: Sequence[AuditEntry] = audit.entries,
            ) -> None:
                count_usage(db, daily_usage(row.key_id, used), seen_at=time.time())
                free = "UPDATE assay_sessions SET busy = 0 WHERE user_id = ? AND id = ?"
                db.run(free, (row.user, row.id))
                for entry in entries:
                    AUDIT.add(db, entry)

            await self._store.transact(write)
        await self._store.transact(drop_abandoned)

    def _new_entry(self, row: SessionRow) -> NewEntry:
        return partial(
            AuditEntry,
            user=row.user,
            key_id=row.key_id,
            target=row.id,
            model=row.model,
            backend=self._shared.backend.name,
        )

    async def drain(self, grace_s: float) -> None:
        """Wait for turns to end, interrupt the rest after a while, then close all sessions."""
        with anyio.move_on_after(grace_s):
            while self.busy_count:
                await self._next_freed()
        for worker in tuple(self._workers.values()):
            worker.interrupt()
            worker.close()
        with anyio.move_on_after(grace_s + 5):
            for worker in tuple(self._workers.values()):
                await worker.ended.wait()

    def _sessions(self, user: str) -> SessionStore:
        return SessionStore(settings_of(self._settings, user).state_dir)

    async def _open(self, user: str, row: SessionRow) -> tuple[SessionWorker, ChatSession]:
        """Return the open session; open it if necessary."""
        key = _key(user, row.id)
        while True:
            worker = self._workers.get(key) or await self._start_worker(key, row)
            chat = await worker.opened()
            await worker.settled()
            if chat is not None and not worker.closing:
                return worker, chat
            await worker.ended.wait()

    async def _start_worker(self, key: StreamKey, row: SessionRow) -> SessionWorker:
        # Under a lock, so that all who wait for a session get the same one.
        async with self._opening:
            if worker := self._workers.get(key):
                return worker
            await self._make_room()
            session = await to_thread.run_sync(self._sessions(key.user).open, row.id)
            opening = partial(self._opened, key, session, row.model)
            worker = SessionWorker(opening, self._settings.serve.idle_s)
            self._workers[key] = worker
            self._tasks.start_soon(self._run_worker, key, worker)
            return worker

    async def _run_worker(self, key: StreamKey, worker: SessionWorker) -> None:
        try:
            await worker.run()
        finally:
            del self._workers[key]
            self._freed.set()

    @asynccontextmanager
    async def _opened(
        self, key: StreamKey, session: Session, model: str
    ) -> AsyncGenerator[ChatSession]:
        async with AsyncExitStack() as stack:
            stream = await stack.enter_async_context(self._streams.hold(key, session.folder))

            def on_event(event: ChatEvent) -> None:
                stream.send(event, kept=not is_passing(event))
                self._listener(session.id, event)
                if audit := self._audits.get(key):
                    audit.on_event(event)

            yield await stack.enter_async_context(
                open_chat_session(
                    session,
                    settings_of(self._settings, key.user),
                    nullcontext(self._shared),
                    model=model,
                    listeners=(on_event,),
                    sync_later=True,
                )
            )

    async def _make_room(self) -> None:
        """If too many sessions are open, close the one that was unused longest."""
        with anyio.move_on_after(_WAIT_FOR_ROOM_S) as waiting:
            while len(self._workers) >= self._settings.serve.max_open_sessions:
                idle = [worker for worker in self._workers.values() if not worker.busy]
                if idle:
                    oldest = min(idle, key=lambda worker: worker.last_used)
                    oldest.close()
                    await oldest.ended.wait()
                else:
                    await self._next_freed()
        if waiting.cancelled_caught:
            raise RequestRejectedError(
                "too many conversations are under way", why="overloaded", retry_after_s=10
            )

    async def _next_freed(self) -> None:
        await self._freed.wait()
        self._freed = anyio.Event()


def _key(user: str, session_id: str) -> StreamKey:
    return StreamKey(kind="session", user=user, id=session_id)


def _turn_of(event: ChatEvent) -> int | None:
    return getattr(event, "turn", None)
