"""Event streams in use: one for each session or run."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio
from anyio import to_thread

from assay.server.services.event_stream import Feed, count_kept


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
