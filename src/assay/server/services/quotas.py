"""Quotas of API keys: requests per minute, parallel runs, tokens and money per day."""

import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from assay.contracts.messages import Price, Usage
from assay.contracts.ports import Model
from assay.server.db.models import Caller, Hold, HoldKind, Usages, Used
from assay.server.db.store import Store
from assay.server.errors import RequestRejectedError
from assay.server.services.reservations import Call, Now, release, reserve, reserve_call
from assay.server.services.reserved_model import HeldModel

_STRANGERS_PER_MINUTE: Final = 60
"""Requests with wrong keys from one address before the service rejects them for a while."""
_FIRST_TOKENS: Final = 2048
_FIRST_USD: Final = 0.01
"""Reserved for a turn before the size of its first call is known."""


class Quotas:
    """Counts the usage of keys, and enforces their quotas."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._requests: dict[tuple[str, str], int] = {}
        """Counts that are not stored yet, by key and day."""

    def count_request(self, caller: Caller) -> None:
        """Count a request.

        Raises:
            RequestRejectedError: If it exceeds the quota of this minute.
        """
        self._pass("key", caller.key_id, caller.quota.requests_per_minute)
        place = (caller.key_id, self._day())
        self._requests[place] = self._requests.get(place, 0) + 1

    def count_unauthenticated(self, address: str) -> None:
        """Count a request without a valid key; raises like `count_request`."""
        self._pass("stranger", address, _STRANGERS_PER_MINUTE)

    def _pass(self, kind: str, who: str, per_minute: int) -> None:
        item = RateLimitItemPerMinute(per_minute)
        if not self._limiter.hit(item, kind, who):
            wait_s = self._limiter.get_window_stats(item, kind, who).reset_time - time.time()
            raise RequestRejectedError(
                f"more than {per_minute} requests per minute",
                why="rate-limited",
                retry_after_s=max(1.0, wait_s),
            )

    async def reserve(
        self, caller: Caller, kind: HoldKind, *, tokens: int | None = None, usd: float | None = None
    ) -> Hold:
        """Reserve a part of the quota for a turn or a run before it starts.

        Reserves the requested amounts, or the whole rest if that is less or none is requested.

        Raises:
            RequestRejectedError: If nothing is left, or the key has too many unfinished runs.
        """
        wanted = Hold(
            id=secrets.token_hex(8),
            key_id=caller.key_id,
            kind=kind,
            target="",
            tokens=tokens or 0,
            cost_usd=usd or 0.0,
            created_at=self._clock(),
        )
        now = self.now()
        return await self._store.transact(
            lambda statements: reserve(statements, caller, wanted, now)
        )

    async def reserve_turn(self, caller: Caller, message: str) -> Hold:
        """Reserve a first part for a turn; each of its calls reserves its own part."""
        return await self.reserve(
            caller, "turn", tokens=_FIRST_TOKENS + len(message) // 3, usd=_FIRST_USD
        )

    @asynccontextmanager
    async def reserving_turn(self, caller: Caller, message: str) -> AsyncGenerator[Hold]:
        """Reserve a first part for a turn; release it if the turn does not start."""
        hold = await self.reserve_turn(caller, message)
        try:
            yield hold
        except BaseException:
            self.release(hold)
            raise

    def held(self, model: Model, caller: Caller, hold: Hold) -> Model:
        """Return a model that makes no call beyond the quota of the caller.

        Raises:
            RequestRejectedError: If the quota is in US dollars, and the price is unknown.
        """
        quota = caller.quota
        if quota.tokens_per_day is None and quota.usd_per_day is None:
            return model
        check_price(caller, model.name, model.facts.price)

        async def reserve_one(call: Call) -> int:
            now = self.now()
            return await self._store.transact(
                lambda statements: reserve_call(statements, caller, hold, call, now)
            )

        return HeldModel(model, reserve_one)

    def release(self, hold: Hold) -> None:
        """Release an unused reservation; returns before that is stored."""
        self._store.post(lambda statements: release(statements, hold.id))

    async def used(self, caller: Caller) -> Used:
        """Return the usage of a key today."""
        day = self._day()
        used = await self._store.usage(caller.key_id, day)
        waiting = self._requests.get((caller.key_id, day), 0)
        return Used(requests=used.requests + waiting, tokens=used.tokens, cost_usd=used.cost_usd)

    def usages(self, key_id: str, usage: Usage) -> Usages:
        """Return usage to be counted; a call without a known price costs nothing here."""
        used = Used(tokens=usage.input_tokens + usage.output_tokens, cost_usd=usage.cost_usd or 0.0)
        return Usages(key_id=key_id, day=self._day(), used=used)

    def now(self) -> Now:
        """Return the current time for reservations."""
        return Now(at=self._clock(), day=self._day())

    async def flush(self) -> None:
        """Store the request counts since the last call."""
        if self._requests:
            counted, self._requests = self._requests, {}
            added = [
                Usages(key_id=key_id, day=day, used=Used(requests=count))
                for (key_id, day), count in counted.items()
            ]
            await self._store.add_usage(added, seen_at=self._clock())

    def _day(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).date().isoformat()


def check_price(caller: Caller, model: str, price: Price | None) -> None:
    """Reject a model without a known price if the key has a quota in US dollars.

    Raises:
        RequestRejectedError: If the quota could not be enforced.
    """
    if caller.quota.usd_per_day is not None and price is None:
        raise RequestRejectedError(
            f"no price is known for {model!r}, and this key has a daily quota in US dollars",
            why="unpriced-model",
            hint=f'use another model, or set [models.prices."{model}"] on the server',
        )
