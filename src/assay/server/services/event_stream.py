"""Who hears of what happens: events by number, kept ones from disk, passing ones while they pass.

The kept events of a session or a run are the lines of its `events.jsonl`, and their numbers are
those of the lines: a listener can go on after the last one it saw, also after a restart.
"""

import json
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread

from assay.contracts.errors import JournalError
from assay.storage.codec import event_to_json, fields_of
from assay.storage.jsonl import whole_lines

EVENTS: Final = "events.jsonl"
_MOST_WAITING: Final = 512
"""Events that a listener may be behind before it is sent back to the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEvent:
    """One event, as it is told to listeners."""

    number: int
    """0 for what only passes by."""
    after: int
    """The number of the last one that was kept before."""
    kind: str
    data: str
    """The fields of the event, as JSON."""


class _Listener:
    def __init__(self, missed: Iterable[FeedEvent]) -> None:
        self.waiting: deque[FeedEvent] = deque(missed)
        self.lost = False
        """It was too slow: what it has not heard is to be read from disk, as far as it is kept."""
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
    """Numbers what is kept of one session or run, and tells everybody who listens."""

    def __init__(self, folder: Path, kept: int) -> None:
        self._folder = folder
        self._kept = kept
        self._listeners: set[_Listener] = set()
        self._passing: deque[FeedEvent] = deque(maxlen=_MOST_WAITING // 2)
        """Since the last one that was kept, for whoever comes in now."""
        self.closed = False

    @property
    def is_heard(self) -> bool:
        return bool(self._listeners)

    def tell(self, event: Any, *, kept: bool) -> None:  # noqa: ANN401 - an event of a run or a conversation
        """Tell of an event; it was written down already if it is kept."""
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
        """Let everybody who listens leave after what there is."""
        self.closed = True
        for listener in self._listeners:
            listener.wake()

    async def listen(
        self, after: int = 0, *, follow: bool = True
    ) -> AsyncGenerator[FeedEvent | None]:
        """Yield what was kept after that number, then what happens; None when all of it was told.

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
                        # What has passed may have been kept, and told as a whole, meanwhile.
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


def told_of(event: Any, number: int, *, after: int = 0) -> FeedEvent:  # noqa: ANN401 - as above
    """Return an event as listeners get it."""
    return _told(event_to_json(event), number, after)


def count_kept(folder: Path) -> int:
    """Return how many events are written down.

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
    # Half of a surrogate pair is escaped this way: there is no UTF-8 for it.
    return FeedEvent(number=number, after=after, kind=str(fields["kind"]), data=json.dumps(fields))
