"""All feeds that somebody needs: one for each session or run, for as long as it is needed."""

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
    """Whose session or run a feed is of."""

    kind: Literal["session", "run"]
    user: str
    id: str


@dataclass(slots=True)
class _Held:
    feed: Feed
    holders: int = 0


class Feeds:
    """Hands out feeds, the same to all who ask for the same."""

    def __init__(self) -> None:
        self._held: dict[FeedKey, _Held] = {}
        self._counting = anyio.Lock()

    @asynccontextmanager
    async def hold(self, key: FeedKey, folder: Path) -> AsyncGenerator[Feed]:
        """Have the feed of a session or run; it is forgotten when the last one leaves.

        Raises:
            JournalError: If the record cannot be read.
        """
        # Nobody writes while the lines are counted: whoever would write needs the feed first.
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
        """Let those leave who listen to this one; who asks again gets a new one."""
        if held := self._held.pop(key, None):
            held.feed.close()

    def close_all(self) -> None:
        """Let everybody leave."""
        for key in tuple(self._held):
            self.close(key)
