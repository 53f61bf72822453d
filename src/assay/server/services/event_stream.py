"""Numbered events of sessions and runs: stored ones from disk, transient ones live.

There is one stream for each session or run in use. Open subscriptions end when their API key is
revoked.
"""

import json
from collections import deque
from collections.abc import AsyncGenerator, Generator
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
_IDLE_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One event in the form for listeners."""

    number: int
    """0 for a transient event."""
    after: int
    """Number of the last stored event before it."""
    kind: str
    data: str
    """The fields of the event, as JSON."""


class _Listener:
    def __init__(self, missed: deque[StreamEvent]) -> None:
        self.waiting = deque(missed)
        self.lost = False
        """The listener was too slow: it must read missed events from disk, if stored."""
        self.wake = anyio.Event()

    def on_event(self, event: StreamEvent) -> None:
        if len(self.waiting) >= _MOST_WAITING:
            self.waiting.clear()
            self.lost = True
        self.waiting.append(event)
        self.wake.set()


class EventStream:
    """Numbers the stored events of one session or run, and sends events to all listeners."""

    def __init__(self, folder: Path, kept: int) -> None:
        self._folder = folder
        self._kept = kept
        self._listeners: set[_Listener] = set()
        self._passing: deque[StreamEvent] = deque(maxlen=_MOST_WAITING // 2)
        """Transient events since the last stored one, for new listeners."""
        self.closed = False
        self.users = 0

    def send(self, event: Any, *, kept: bool) -> None:
        """Send an event; a stored one has been written to disk already."""
        fields = jsonable(event)
        if kept:
            self._kept += 1
            self._passing.clear()
            sent = _event(fields, self._kept, 0)
        else:
            sent = _event(fields, 0, self._kept)
            self._passing.append(sent)
        for listener in self._listeners:
            listener.on_event(sent)

    def close(self) -> None:
        """End all listeners after the remaining events."""
        self.closed = True
        for listener in self._listeners:
            listener.wake.set()

    async def listen(
        self, after: int = 0, *, follow: bool = True
    ) -> AsyncGenerator[StreamEvent | None]:
        """Yield stored events after that number, then live ones; None if there is none for a while.

        Raises:
            JournalError: If the record cannot be read.
        """
        listener = _Listener(self._passing)
        self._listeners.add(listener)
        try:
            sent = after
            while True:
                listener.lost = False
                for event in await to_thread.run_sync(_read_after, self._folder, sent):
                    sent = event.number
                    yield event
                if not follow:
                    return
                while not listener.lost:
                    while listener.waiting and not listener.lost:
                        event = listener.waiting.popleft()
                        # Transient events may meanwhile be part of a stored event.
                        if event.number > sent or (not event.number and event.after >= sent):
                            sent = max(sent, event.number)
                            yield event
                    if self.closed and not listener.waiting:
                        return
                    if not listener.lost:
                        with anyio.move_on_after(_IDLE_S) as waiting:
                            await listener.wake.wait()
                        listener.wake = anyio.Event()
                        if waiting.cancelled_caught:
                            yield None
        finally:
            self._listeners.discard(listener)


def _event(fields: dict[str, Any], number: int, after: int) -> StreamEvent:
    # A lone surrogate is escaped this way: it has no UTF-8.
    data = json.dumps(fields)
    return StreamEvent(number=number, after=after, kind=str(fields["kind"]), data=data)


def _read_after(folder: Path, number: int) -> list[StreamEvent]:
    lines = _lines(folder)[number:]
    return [
        _event(fields_of(line)["event"], index, index - 1)
        for index, line in enumerate(lines, number + 1)
    ]


def _lines(folder: Path) -> list[bytes]:
    try:
        return whole_lines(folder / EVENTS)
    except OSError as error:
        raise JournalError(f"the record cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamKey:
    """User and id of the session or run."""

    kind: Literal["session", "run"]
    user: str
    id: str


class EventStreams:
    """Opens event streams; all users of the same key share one."""

    def __init__(self) -> None:
        self._open: dict[StreamKey, EventStream] = {}
        self._counting = anyio.Lock()

    @asynccontextmanager
    async def hold(self, key: StreamKey, folder: Path) -> AsyncGenerator[EventStream]:
        """Open the stream of a session or run; it is dropped when its last user closes it.

        Raises:
            JournalError: If the record cannot be read.
        """
        # No writer can append while the lines are counted: writers need the stream first.
        async with self._counting:
            stream = self._open.get(key)
            if stream is None:
                stream = EventStream(folder, len(await to_thread.run_sync(_lines, folder)))
                self._open[key] = stream
            stream.users += 1
        try:
            yield stream
        finally:
            stream.users -= 1
            if not stream.users and self._open.get(key) is stream:
                del self._open[key]

    def close(self, key: StreamKey) -> None:
        """End all listeners of a stream; later callers get a new one."""
        if stream := self._open.pop(key, None):
            stream.close()

    def close_all(self) -> None:
        """End all listeners of all streams."""
        for key in tuple(self._open):
            self.close(key)


class Subscriptions:
    """Registers the streams that callers read, and ends those of callers that lose access."""

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
        keys = await self._store.keys()
        revoked = {key.id for key in keys if key.revoked_at is not None}
        for scope, caller in tuple(self._open.items()):
            # Access without a key ends when the first key is created.
            if caller.key_id in revoked or (keys and not caller.by_key):
                scope.cancel()
