"""How much each key may use: requests by the minute, runs at once, tokens and money by the day."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from assay.contracts.conversation import Usage
from assay.hosting.records import Caller, Usages, Used
from assay.hosting.refusing import RefusedError
from assay.hosting.store import Store

_STRANGERS_PER_MINUTE: Final = 60
"""Wrong keys from one address, before it is not listened to for a while."""
_DAY_S: Final = 86_400


class Quotas:
    """Counts what keys use, and says when it is enough."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._requests: dict[tuple[str, str], int] = {}
        """Not written down yet, by key and day."""

    def count_request(self, caller: Caller) -> None:
        """Count a request.

        Raises:
            RefusedError: If it is one too many for this minute.
        """
        self._pass("key", caller.key_id, caller.quota.requests_per_minute)
        place = (caller.key_id, self._day())
        self._requests[place] = self._requests.get(place, 0) + 1

    def count_stranger(self, address: str) -> None:
        """Count a request whose key does not work; raises like `count_request`."""
        self._pass("stranger", address, _STRANGERS_PER_MINUTE)

    def _pass(self, kind: str, who: str, per_minute: int) -> None:
        item = RateLimitItemPerMinute(per_minute)
        if not self._limiter.hit(item, kind, who):
            wait_s = self._limiter.get_window_stats(item, kind, who).reset_time - time.time()
            raise RefusedError(
                f"more than {per_minute} requests in a minute",
                why="rate-limited",
                retry_after_s=max(1.0, wait_s),
            )

    async def check_spending(self, caller: Caller) -> None:
        """See that there is something left of the day's tokens and money.

        Raises:
            RefusedError: If not.
        """
        quota, used = caller.quota, await self.used(caller)
        if quota.tokens_per_day is not None and used.tokens >= quota.tokens_per_day:
            raise self._used_up(f"the {quota.tokens_per_day} tokens of this day are used up")
        if quota.usd_per_day is not None and used.cost_usd >= quota.usd_per_day:
            raise self._used_up(f"the {quota.usd_per_day:g} USD of this day are used up")

    async def check_runs(self, caller: Caller) -> None:
        """See that another run may be begun.

        Raises:
            RefusedError: If too many of this key are unfinished.
        """
        unfinished = await self._store.count_unfinished(caller.key_id)
        if unfinished >= caller.quota.runs:
            raise RefusedError(
                f"{unfinished} runs of this key are unfinished; more are not allowed",
                why="quota-exceeded",
                hint="wait for one to end, or cancel one",
                retry_after_s=30,
            )

    async def used(self, caller: Caller) -> Used:
        """Return what a key has used today."""
        day = self._day()
        used = await self._store.usage(caller.key_id, day)
        waiting = self._requests.get((caller.key_id, day), 0)
        return Used(requests=used.requests + waiting, tokens=used.tokens, cost_usd=used.cost_usd)

    async def add(self, key_id: str, usage: Usage) -> None:
        """Write down what was used; what has no known price costs nothing here."""
        used = Used(tokens=usage.input_tokens + usage.output_tokens, cost_usd=usage.cost_usd or 0.0)
        added = Usages(key_id=key_id, day=self._day(), used=used)
        await self._store.add_usage((added,), seen_at=self._clock())

    async def flush(self) -> None:
        """Write down the requests that were counted since the last time."""
        if self._requests:
            counted, self._requests = self._requests, {}
            added = [
                Usages(key_id=key_id, day=day, used=Used(requests=count))
                for (key_id, day), count in counted.items()
            ]
            await self._store.add_usage(added, seen_at=self._clock())

    def _day(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).date().isoformat()

    def _used_up(self, message: str) -> RefusedError:
        left_s = _DAY_S - self._clock() % _DAY_S
        return RefusedError(
            message,
            why="quota-exceeded",
            hint="it begins anew at midnight UTC",
            retry_after_s=left_s,
        )
