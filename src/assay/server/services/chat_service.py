"""Chat sessions of all users: opened on demand, shared by requests, closed when idle."""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

import anyio
import anyio.abc
from anyio import to_thread

from assay.chat.open_session import ChatCallbacks, Conversation, Shared, open_conversation
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
from assay.contracts.ports import Model
from assay.server.auth import settings_of
from assay.server.db.database import Statements
from assay.server.db.models import Caller, Hold, Page, SessionRow
from assay.server.db.store import Store, count_usage
from assay.server.errors import RequestRejectedError, not_found
from assay.server.services.audit_log import Acting, TurnAudit, cut_off, keeper
from assay.server.services.event_stream import Feed, FeedKey, Feeds
from assay.server.services.quotas import Quotas, drop_abandoned, settle
from assay.server.services.session_worker import Job, SessionWorker
from assay.settings.load import Settings
from assay.storage.chat_store import Session, SessionRecord, SessionStore

T = TypeVar("T")
Listener = Callable[[str, ChatEvent], None]
"""Callback for every event, with the id of its session."""

_LOG: Final = logging.getLogger(__name__)
_WAIT_FOR_ROOM_S: Final = 120.0
_TITLE_CHARS: Final = 80
_CUT_OFF: Final = "The service ended while this turn was under way."


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHandle:
    """A running turn."""

    turn: int
    order: Job[TurnEnded]
    conversation: Conversation
    before: Usage
    """Usage of the session before the turn."""

    async def finish(self) -> Turn:
        """Wait for the end of the turn, and return it with its results."""
        await self.order.wait()
        turns = self.conversation.dialogue.history.turns
        return next(turn for turn in turns if turn.number == self.turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A turn with its quota reservation."""

    talk: SessionWorker
    row: SessionRow
    message: str
    instructions: str
    model: Model
    """A model that makes no call beyond the quota."""
    hold: Hold


class Conversations:
    """Operations on sessions. Each user can access only their own."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        shared: Shared,
        feeds: Feeds,
        quotas: Quotas,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self._settings = settings
        self._store = store
        self._shared = shared
        self._feeds = feeds
        self._quotas = quotas
        self._tasks = tasks
        self.listener: Listener = lambda _session, _event: None
        self._talks: dict[FeedKey, SessionWorker] = {}
        self._audits: dict[FeedKey, TurnAudit] = {}
        """Holds of running turns."""
        self._keep_audit = keeper(store)
        self._opening = anyio.Lock()
        self._freed = anyio.Event()

    @property
    def open_count(self) -> int:
        return len(self._talks)

    @property
    def busy_count(self) -> int:
        return sum(talk.busy for talk in self._talks.values())

    async def create(self, user: str, title: str = "", model: str = "") -> SessionRow:
        """Create a session; raises `JournalError` if it cannot be written."""
        session = await to_thread.run_sync(self._sessions(user).create, title)
        row = SessionRow(
            id=session.id,
            user=user,
            title=title,
            created_at=session.created_at,
            updated_at=session.created_at,
            model=model,
        )
        await self._store.put_session(row)
        return row

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
        talk = self._talks.get(_key(user, session_id))
        return replace(row, busy=talk is not None and talk.busy)

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
        key = _key(user, session_id)
        async with self._opening:
            if talk := self._talks.get(key):
                await talk.settled()
                if talk.busy:
                    raise RequestRejectedError("a turn of this session is under way", why="busy")
                talk.close()
                await talk.ended.wait()
            await to_thread.run_sync(self._sessions(user).delete, session_id)
            await self._store.delete_session(user, session_id)
        self._feeds.close(key)

    async def begin_turn(
        self,
        caller: Caller,
        session_id: str,
        message: str,
        hold: Hold | None = None,
        *,
        instructions: str = "",
    ) -> TurnHandle:
        """Start the model's answer to a message; return when the turn has started.

        The turn first reserves a part of the quota, unless the caller has done so.

        Raises:
            RequestRejectedError: If there is no such session, another turn of it is running, or the
                quota does not allow another turn.
            AssayError: If a required component cannot be opened.
        """
        row = replace(await self.find(caller.user, session_id), key_id=caller.key_id)
        try:
            if hold is None:
                async with self._quotas.reserving_turn(caller, message) as own:
                    return await self._begun(caller, row, (message, instructions), own)
            return await self._begun(caller, row, (message, instructions), hold)
        except AssayError as error:
            outcome = error.why if isinstance(error, RequestRejectedError) else "failed"
            self._keep_audit(self._acting(row, row.model).entry("turn.run", outcome))
            raise

    async def _begun(
        self, caller: Caller, row: SessionRow, said: tuple[str, str], hold: Hold
    ) -> TurnHandle:
        talk, conversation = await self._open(caller.user, row)
        model = self._quotas.held(conversation.dialogue.model, caller, hold)
        message, instructions = said
        turn = _Held(
            talk=talk,
            row=row,
            message=message,
            instructions=instructions,
            model=model,
            hold=hold,
        )
        before = conversation.dialogue.history
        dropped = partial(self._quotas.release, hold)
        order = talk.give(partial(self._take, turn), dropped=dropped)
        return TurnHandle(
            turn=before.begun + 1, order=order, conversation=conversation, before=before.usage
        )

    async def _take(self, turn: "_Held", conversation: Conversation) -> TurnEnded:
        """Run one turn, and count its usage."""
        dialogue, row = conversation.dialogue, turn.row
        before, model = dialogue.history, dialogue.model
        key = _key(row.user, row.id)
        self._audits[key] = TurnAudit(self._acting(row, model.name), self._keep_audit)
        try:
            await self._store.put_session(
                replace(
                    row,
                    title=row.title or " ".join(turn.message.split())[:_TITLE_CHARS],
                    turns=before.begun + 1,
                    updated_at=time.time(),
                    model=model.name,
                    busy=True,
                )
            )
            dialogue.model = turn.model
            return await dialogue.say(turn.message, turn.instructions)
        finally:
            dialogue.model = model
            del self._audits[key]
            # A listener may start the next turn as soon as it sees the end of this one.
            turn.talk.settling = True
            with anyio.CancelScope(shield=True):
                await self._settle(turn, conversation, before.usage)

    async def load(
        self, user: str, session_id: str, path: PurePosixPath, content: bytes
    ) -> FileLoaded:
        """Add a file to the workspace of a session; raises like `begin_turn`."""

        async def load(conversation: Conversation) -> FileLoaded:
            loaded = await conversation.dialogue.load(path, content)
            await conversation.record.settle()
            return loaded

        return await self._do(user, session_id, load)

    async def undo(self, user: str, session_id: str) -> TurnUndone:
        """Undo the last turn; raises like `begin_turn`."""
        return await self._do(user, session_id, lambda conversation: conversation.dialogue.undo())

    async def interrupt(self, user: str, session_id: str) -> bool:
        """Interrupt the running turn; return False if there is none.

        Raises:
            RequestRejectedError: If there is no such session.
        """
        await self.find(user, session_id)
        talk = self._talks.get(_key(user, session_id))
        if talk is None or not talk.busy:
            return False
        talk.interrupt()
        return True

    @asynccontextmanager
    async def feed(self, user: str, session_id: str) -> AsyncGenerator[Feed]:
        """Open the event stream of a session.

        Raises:
            RequestRejectedError: If there is no such session.
        """
        folder = await self.folder(user, session_id)
        async with self._feeds.hold(_key(user, session_id), folder) as feed:
            yield feed

    async def folder(self, user: str, session_id: str) -> Path:
        """Return the folder of a session.

        Raises:
            RequestRejectedError: If there is none.
        """
        row = await self.find(user, session_id)
        return self._sessions(user).folder / row.id

    async def recover(self) -> None:
        """Record the end and the usage of each turn that a crash interrupted."""
        for row in await self._store.busy_sessions():
            used = Usage()
            with suppress(AssayError):
                place = SessionStore(settings_of(self._settings, row.user).state_dir)
                session = await to_thread.run_sync(place.open, row.id)
                async with SessionRecord(session.folder) as record:
                    begun = any(_begins(event, row.turns) for event in record.events)
                    if begun and not any(_ends(event, row.turns) for event in record.events):
                        acting = self._acting(row, row.model)
                        for entry in cut_off(record.events, row.turns, acting):
                            self._keep_audit(entry)
                        for event in _cut_off(record.events, row.turns):
                            record.emit(event)
                    used = _usage_of(record.events, row.turns)
            await self._count_cut_off(row, used)
        await self._store.transact(drop_abandoned)

    def _acting(self, row: SessionRow, model: str) -> Acting:
        return Acting(
            user=row.user,
            key_id=row.key_id,
            target=row.id,
            model=model,
            backend=self._shared.backend.name,
        )

    async def _count_cut_off(self, row: SessionRow, usage: Usage) -> None:
        counted, now = self._quotas.usages(row.key_id, usage), self._quotas.now()

        def write(statements: Statements) -> None:
            count_usage(statements, counted, seen_at=now.at)
            free = "UPDATE assay_sessions SET busy = 0 WHERE user_id = ? AND id = ?"
            statements.run(free, (row.user, row.id))

        await self._store.transact(write)

    async def drain(self, within_s: float) -> None:
        """Wait for turns to end, interrupt the rest after a while, then close all sessions."""
        with anyio.move_on_after(within_s):
            while self.busy_count:
                await self._next_freed()
        for talk in tuple(self._talks.values()):
            talk.interrupt()
            talk.close()
        with anyio.move_on_after(within_s + 5):
            for talk in tuple(self._talks.values()):
                await talk.ended.wait()

    def _sessions(self, user: str) -> SessionStore:
        return SessionStore(settings_of(self._settings, user).state_dir)

    async def _do(
        self, user: str, session_id: str, work: Callable[[Conversation], Awaitable[T]]
    ) -> T:
        row = await self.find(user, session_id)
        talk, _ = await self._open(user, row)
        value = await talk.give(work).wait()
        await self._store.put_session(replace(row, updated_at=time.time()))
        return value

    async def _settle(self, turn: "_Held", conversation: Conversation, before: Usage) -> None:
        """Count the usage of a turn, and mark the session as free."""
        row, now = turn.row, self._quotas.now()
        used = difference(before, conversation.dialogue.history.usage)
        counted = self._quotas.usages(row.key_id, used)

        def write(statements: Statements) -> None:
            settle(statements, turn.hold.id, counted, now)
            statements.run(
                "UPDATE assay_sessions SET updated_at = ?, busy = 0 WHERE user_id = ? AND id = ?",
                (now.at, row.user, row.id),
            )

        try:
            await conversation.record.settle()
            await self._store.transact(write)
        except JournalError as error:
            _LOG.error("a turn could not be noted: %s", error)
        self._freed.set()

    async def _open(self, user: str, row: SessionRow) -> tuple[SessionWorker, Conversation]:
        """Return the open session; open it if necessary."""
        key = _key(user, row.id)
        while True:
            talk = self._talks.get(key) or await self._begin(key, row)
            conversation = await talk.opened()
            await talk.settled()
            if conversation is not None and not talk.closing:
                return talk, conversation
            await talk.ended.wait()

    async def _begin(self, key: FeedKey, row: SessionRow) -> SessionWorker:
        # Under a lock, so that all who wait for a session get the same one.
        async with self._opening:
            if talk := self._talks.get(key):
                return talk
            await self._make_room()
            session = await to_thread.run_sync(self._sessions(key.user).open, row.id)
            opening = partial(self._opened, key, session, row.model)
            talk = SessionWorker(opening, self._settings.serve.idle_s)
            self._talks[key] = talk
            self._tasks.start_soon(self._live, key, talk)
            return talk

    async def _live(self, key: FeedKey, talk: SessionWorker) -> None:
        try:
            await talk.live()
        finally:
            del self._talks[key]
            self._freed.set()

    @asynccontextmanager
    async def _opened(
        self, key: FeedKey, session: Session, model: str
    ) -> AsyncGenerator[Conversation]:
        async with AsyncExitStack() as stack:
            feed = await stack.enter_async_context(self._feeds.hold(key, session.folder))

            def hear(event: ChatEvent) -> None:
                feed.tell(event, kept=not is_passing(event))
                self.listener(session.id, event)
                if audit := self._audits.get(key):
                    audit.hear(event)

            yield await stack.enter_async_context(
                open_conversation(
                    session,
                    settings_of(self._settings, key.user),
                    ChatCallbacks(listeners=(hear,), on_notice=_LOG.info),
                    model=model,
                    shared=self._shared,
                )
            )

    async def _make_room(self) -> None:
        """If too many sessions are open, close the one that was unused longest."""
        with anyio.move_on_after(_WAIT_FOR_ROOM_S) as waiting:
            while len(self._talks) >= self._settings.serve.max_open_sessions:
                idle = [talk for talk in self._talks.values() if not talk.busy]
                if idle:
                    oldest = min(idle, key=lambda talk: talk.last_used)
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


def difference(before: Usage, after: Usage) -> Usage:
    """Return the usage between two counts."""
    known = before.cost_usd is not None and after.cost_usd is not None
    return Usage(
        input_tokens=after.input_tokens - before.input_tokens,
        cached_input_tokens=after.cached_input_tokens - before.cached_input_tokens,
        output_tokens=after.output_tokens - before.output_tokens,
        calls=after.calls - before.calls,
        cost_usd=(after.cost_usd or 0.0) - (before.cost_usd or 0.0) if known else None,
    )


def _key(user: str, session_id: str) -> FeedKey:
    return FeedKey(kind="session", user=user, id=session_id)


def _cut_off(events: Iterable[ChatEvent], turn: int) -> Iterator[ChatEvent]:
    """Return the end of a turn that a crash interrupted: first its cell, with its output."""
    history = History()
    for event in events:
        history = history.after(event)
    if (cell := cut_off_cell(history)) is not None:
        yield cell
    yield TurnEnded(turn=turn, status="interrupted", text=_CUT_OFF, usage=Usage())


def _usage_of(events: Iterable[ChatEvent], turn: int) -> Usage:
    steps = (event for event in events if isinstance(event, CellStarted | ToolUsed | TurnEnded))
    return sum((step.usage for step in steps if step.turn == turn), Usage())


def _begins(event: ChatEvent, turn: int) -> bool:
    return isinstance(event, TurnStarted) and event.turn == turn


def _ends(event: ChatEvent, turn: int) -> bool:
    return isinstance(event, TurnEnded) and event.turn == turn
