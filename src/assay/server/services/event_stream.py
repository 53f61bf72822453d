"""Numbered events of sessions and runs: stored ones from disk, transient ones live.

There is one stream for each session or run in use. Open streams end when their API key is
revoked.
"""

import json
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import anyio
from anyio import to_thread

from assay.contracts.errors import JournalError
from assay.contracts.jsonable import jsonable
from assay.files import whole_lines
from assay.server.db.models import Caller
from assay.server.db.store import Store
from assay.storage.codec import fields_of

EVENTS: Final = "events.jsonl"
_MOST_WAITING: Final = 512
"""Events that a listener may lag behind before it must read from disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEvent:
    """One event in the form for listeners."""

    number: int
    """0 for a transient event."""
    after: int
    """Number of the last stored event before it."""
    kind: str
    data: str
    """The fields of the event, as JSON."""


class _Listener:
    def __init__(self, missed: Iterable[FeedEvent]) -> None:
        self.waiting: deque[FeedEvent] = deque(missed)
        self.lost = False
        """The listener was too slow: it must read missed events from disk, if stored."""
        self._news = anyio.Event()

    def hear(self, told: FeedEvent) -> None:
        if len(self.waiting) >= _MOST_WAITING:
            self.waiting.clear()
            self.lost = True
        self.waiting.append(told)
        self.wake()

    def wake(self) -> None:
        self._news.set()

    async def wait(self) -> None:
        await self._news.wait()
        self._news = anyio.Event()


class Feed:
    """Numbers the stored events of one session or run, and sends events to all listeners."""

    def __init__(self, folder: Path, kept: int) -> None:
        self._folder = folder
        self._kept = kept
        self._listeners: set[_Listener] = set()
        self._passing: deque[FeedEvent] = deque(maxlen=_MOST_WAITING // 2)
        """Transient events since the last stored one, for new listeners."""
        self.closed = False

    @property
    def is_heard(self) -> bool:
        return bool(self._listeners)

    def tell(self, event: Any, *, kept: bool) -> None:
        """Send an event; a stored one has been written to disk already."""
        if kept:
            self._kept += 1
            self._passing.clear()
            told = told_of(event, self._kept)
        else:
            told = told_of(event, 0, after=self._kept)
            self._passing.append(told)
        for listener in self._listeners:
            listener.hear(told)

    def close(self) -> None:
        """End all listeners after the remaining events."""
        self.closed = True
        for listener in self._listeners:
            listener.wake()

    async def listen(
        self, after: int = 0, *, follow: bool = True
    ) -> AsyncGenerator[FeedEvent | None]:
        """Yield stored events after that number, then live ones; None marks the end of the first.

        Raises:
            JournalError: If the record cannot be read.
        """
        with self._listening() as listener:
            sent = after
            while True:
                listener.lost = False
                for told in await to_thread.run_sync(_read_after, self._folder, sent):
                    sent = told.number
                    yield told
                yield None
                if not follow:
                    return
                while not listener.lost:
                    while listener.waiting and not listener.lost:
                        told = listener.waiting.popleft()
                        # Transient events may meanwhile be part of a stored event.
                        if told.number > sent or (not told.number and told.after >= sent):
                            sent = max(sent, told.number)
                            yield told
                    if self.closed and not listener.waiting:
                        return
                    if not listener.lost:
                        await listener.wait()

    @contextmanager
    def _listening(self) -> Generator[_Listener]:
        listener = _Listener(self._passing)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)


def told_of(event: Any, number: int, *, after: int = 0) -> FeedEvent:
    """Return an event in the form for listeners."""
    return _told(jsonable(event), number, after)


def count_kept(folder: Path) -> int:
    """Return the number of stored events.

    Raises:
        JournalError: If the record cannot be read.
    """
    return len(_lines(folder))


def _read_after(folder: Path, number: int) -> list[FeedEvent]:
    lines = _lines(folder)
    return [
        _told(fields_of(line)["event"], place, place - 1)
        for place, line in enumerate(lines[number:], number + 1)
    ]


def _lines(folder: Path) -> list[bytes]:
    try:
        return whole_lines(folder / EVENTS)
    except OSError as error:
        raise JournalError(f"the record cannot be read: {error.strerror}") from error


def _told(fields: dict[str, Any], number: int, after: int) -> FeedEvent:
    # A lone surrogate is escaped this way: it has no UTF-8.
    return FeedEvent(number=number, after=after, kind=str(fields["kind"]), data=json.dumps(fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedKey:
    """User and id of the session or run."""

    kind: Literal["session", "run"]
    user: str
    id: str


@dataclass(slots=True)
class _Held:
    feed: Feed
    holders: int = 0


class Feeds:
    """Opens event streams; all callers with the same key share one."""

    def __init__(self) -> None:
        self._held: dict[FeedKey, _Held] = {}
        self._counting = anyio.Lock()

    @asynccontextmanager
    async def hold(self, key: FeedKey, folder: Path) -> AsyncGenerator[Feed]:
        """Open the stream of a session or run; it is dropped when its last user closes it.

        Raises:
            JournalError: If the record cannot be read.
        """
        # No writer can append while the lines are counted: writers need the stream first.
        async with self._counting:
            held = self._held.get(key)
            if held is None:
                held = _Held(Feed(folder, await to_thread.run_sync(count_kept, folder)))
                self._held[key] = held
            held.holders += 1
        try:
            yield held.feed
        finally:
            held.holders -= 1
            if not held.holders and self._held.get(key) is held:
                del self._held[key]

    def close(self, key: FeedKey) -> None:
        """End all listeners of a stream; later callers get a new one."""
        if held := self._held.pop(key, None):
            held.feed.close()

    def close_all(self) -> None:
        """End all listeners of all streams."""
        for key in tuple(self._held):
            self.close(key)


class Streams:
    """Registers open streams, and ends those whose caller loses access."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[anyio.CancelScope, Caller] = {}

    @contextmanager
    def opened(self, caller: Caller) -> Generator[anyio.CancelScope]:
        """Return a scope that is cancelled when the caller loses access."""
        with anyio.CancelScope() as scope:
            self._open[scope] = caller
            try:
                yield scope
            finally:
                del self._open[scope]

    async def end_revoked(self) -> None:
        """End the streams of revoked keys, including those that another process has revoked.

        Raises:
            JournalError: If the database does not answer.
        """
        if not self._open:
            return
        revoked = await self._store.revoked_keys()
        # Access without a key ends when the first key is created.
        closed = any(not one.by_key for one in self._open.values()) and await self._store.has_keys()
        for scope, caller in tuple(self._open.items()):
            if caller.key_id in revoked or (closed and not caller.by_key):
                scope.cancel()
