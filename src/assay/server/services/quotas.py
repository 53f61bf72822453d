"""Quotas of API keys: requests per minute, parallel runs, tokens and money per day.

Reservations are made in one transaction before work starts, and settled at its end; a model wrapper
reserves each call.
"""

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from assay.auth.rate_limit import RateLimiter
from assay.contracts.errors import BudgetExceededError
from assay.contracts.messages import Price, Reply, Request, Usage
from assay.contracts.ports import Model, OnText, ignore_text
from assay.models.budget import estimate_input_tokens
from assay.models.model_bases import WrappedModel
from assay.server.db.models import Caller, DailyUsage, Hold, HoldKind
from assay.server.db.store import HOLDS, Store, count_usage, usage_of
from assay.server.errors import RequestRejectedError
from assay.text.sql_tables import Statements

_LOCK: Final = ""
"""Day of a usage row that counts nothing, and only serializes the reservations of a key."""
_LEAST_WRITTEN_TOKENS: Final = 256
"""A shorter reply would break off before it says anything useful."""
_SOON_S: Final = 5.0
_RUN_S: Final = 30.0
_DAY_S: Final = 86_400
_UNAUTHENTICATED_PER_MINUTE: Final = 60
"""Requests with wrong keys from one address before the service rejects them for a while."""
_FIRST_TOKENS: Final = 2048
_FIRST_USD: Final = 0.01
"""Reserved for a turn before the size of its first call is known."""


def new_hold(
    caller: Caller, kind: HoldKind, *, tokens: int | None = None, usd: float | None = None
) -> Hold:
    """Return a reservation to request; without an amount, it takes all that is left."""
    return Hold(
        id=secrets.token_hex(8),
        key_id=caller.key_id,
        kind=kind,
        target="",
        tokens=tokens or 0,
        cost_usd=usd or 0.0,
        created_at=time.time(),
    )


def new_turn_hold(caller: Caller, message: str) -> Hold:
    """Return the first reservation of a turn; each of its model calls reserves its own part."""
    return new_hold(caller, "turn", tokens=_FIRST_TOKENS + len(message) // 3, usd=_FIRST_USD)


def reserve(db: Statements, caller: Caller, requested: Hold) -> Hold:
    """Reserve the requested amounts, or what is left of them; return the reservation.

    Raises:
        RequestRejectedError: If nothing is left, or the key has too many unfinished runs.
    """
    _lock(db, caller.key_id)
    if requested.kind == "run":
        sql = "SELECT COUNT(*) FROM assay_holds WHERE key_id = ? AND kind = 'run'"
        if int(db.rows(sql, (caller.key_id,))[0][0]) >= caller.quota.runs:
            raise RequestRejectedError(
                f"the quota of {caller.quota.runs} unfinished runs is used up",
                why="quota-exceeded",
                hint="wait for one to end, or cancel one",
                retry_after_s=_RUN_S,
            )
    tokens, cost_usd = amounts_left(db, caller, at=requested.created_at)
    hold = replace(
        requested,
        tokens=0 if tokens is None else int(min(requested.tokens or tokens, tokens)),
        cost_usd=0.0 if cost_usd is None else min(requested.cost_usd or cost_usd, cost_usd),
    )
    HOLDS.add(db, hold)
    return hold


def amounts_left(
    db: Statements, caller: Caller, *, at: float, but: str = ""
) -> tuple[int | None, float | None]:
    """Return the tokens and US dollars that are neither used nor reserved; None without a quota.

    Does not count the reservation with the id `but`.

    Raises:
        RequestRejectedError: If nothing is left.
    """
    quota, used = caller.quota, usage_of(db, caller.key_id, day_of(at))
    sql = (
        "SELECT COALESCE(SUM(tokens), 0), COALESCE(SUM(cost_usd), 0) FROM assay_holds "
        "WHERE key_id = ? AND id <> ?"
    )
    held_tokens, held_usd = db.rows(sql, (caller.key_id, but))[0]
    tokens = cost_usd = None
    if quota.tokens_per_day is not None:
        tokens = quota.tokens_per_day - used.tokens - int(held_tokens)
        if tokens <= 0:
            is_used = used.tokens >= quota.tokens_per_day
            raise _none_left(f"token quota ({quota.tokens_per_day:,})", at, is_used=is_used)
    if quota.usd_per_day is not None:
        cost_usd = quota.usd_per_day - used.cost_usd - float(held_usd)
        if cost_usd <= 0:
            is_used = used.cost_usd >= quota.usd_per_day
            raise _none_left(f"cost quota ({quota.usd_per_day:g} USD)", at, is_used=is_used)
    return tokens, cost_usd


def _none_left(what: str, at: float, *, is_used: bool) -> RequestRejectedError:
    if is_used:
        return RequestRejectedError(
            f"daily {what} is used up",
            why="quota-exceeded",
            hint="it resets at 00:00 UTC",
            retry_after_s=_DAY_S - at % _DAY_S,
        )
    return RequestRejectedError(
        f"what is left of the daily {what} is reserved by unfinished turns and runs",
        why="quota-exceeded",
        hint="try again when one has ended; a run reserves its `budget`, or all that is left",
        retry_after_s=_SOON_S,
    )


def _lock(db: Statements, key_id: str) -> None:
    # SQLite locks the whole file in each transaction. PostgreSQL locks this row until its end.
    db.run(
        "INSERT INTO assay_usage VALUES (?, ?, 0, 0, 0) "
        "ON CONFLICT (key_id, day) DO UPDATE SET tokens = assay_usage.tokens",
        (key_id, _LOCK),
    )


def release(db: Statements, hold_id: str) -> None:
    """Release a reservation."""
    db.run("DELETE FROM assay_holds WHERE id = ?", (hold_id,))


def settle(db: Statements, hold_id: str, used: DailyUsage, *, at: float) -> None:
    """Count the actual usage, and release the reservation."""
    count_usage(db, used, seen_at=at)
    release(db, hold_id)


def shrink(db: Statements, hold: Hold, used: DailyUsage, *, at: float) -> None:
    """Count a run's usage so far, and keep the rest reserved, since the run resumes later."""
    count_usage(db, used, seen_at=at)
    # Not below 1 token or above zero dollars: 0 means that the key has no such quota.
    tokens = max(1, hold.tokens - used.tokens) if hold.tokens else 0
    cost_usd = max(1e-9, hold.cost_usd - used.cost_usd) if hold.cost_usd else 0.0
    _resize(db, hold.id, tokens, cost_usd)


def _resize(db: Statements, hold_id: str, tokens: int, cost_usd: float) -> None:
    sql = "UPDATE assay_holds SET tokens = ?, cost_usd = ? WHERE id = ?"
    db.run(sql, (tokens, cost_usd, hold_id))


def drop_abandoned(db: Statements) -> None:
    """Release reservations of a killed process; unfinished runs keep theirs."""
    db.run(
        "DELETE FROM assay_holds WHERE kind = 'turn' OR NOT EXISTS ("
        "SELECT 1 FROM assay_runs WHERE assay_runs.id = assay_holds.target "
        "AND assay_runs.key_id = assay_holds.key_id AND status IN ('queued', 'running'))"
    )


ReserveCall = Callable[[Usage, int, int, Price | None], Awaitable[int]]
"""Reserves a call; returns the token cap of its reply.

Receives the usage of earlier calls, the estimated input tokens, the usual cap and the price.
"""


class HeldModel(WrappedModel):
    """Model of one turn: reserves the estimate of each call, and counts its actual usage."""

    def __init__(self, model: Model, reserve: ReserveCall) -> None:
        super().__init__(model)
        self._reserve = reserve
        self._used = Usage()

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        usual = self.info.output_limit(request)
        estimated = estimate_input_tokens(request)
        try:
            written = await self._reserve(self._used, estimated, usual, self.info.price)
        except RequestRejectedError as refused:
            raise BudgetExceededError(
                str(refused), hint=refused.hint, retry_after_s=refused.retry_after_s
            ) from refused
        if written < usual:
            request = replace(request, max_output_tokens=written)
        reply = await self._model.reply(request, on_text=on_text)
        self._used += replace(reply.usage, cost_usd=reply.usage.cost_usd or 0.0)
        return reply


class Quotas:
    """Counts the usage of keys, and enforces their quotas."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._limiter = RateLimiter()
        self._requests: dict[tuple[str, str], int] = {}
        """Counts that are not stored yet, by key and day."""

    def count_request(self, caller: Caller) -> None:
        """Count a request.

        Raises:
            RequestRejectedError: If it exceeds the quota of this minute.
        """
        self._limit("key", caller.key_id, caller.quota.requests_per_minute)
        bucket = (caller.key_id, day_of(time.time()))
        self._requests[bucket] = self._requests.get(bucket, 0) + 1

    def count_unauthenticated(self, address: str) -> None:
        """Count a request without a valid key; raises like `count_request`."""
        self._limit("address", address, _UNAUTHENTICATED_PER_MINUTE)

    def _limit(self, kind: str, name: str, per_minute: int) -> None:
        wait_s = self._limiter.hit(per_minute, kind, name)
        if wait_s is not None:
            raise RequestRejectedError(
                f"more than {per_minute} requests per minute",
                why="rate-limited",
                retry_after_s=max(1.0, wait_s),
            )

    async def check_left(self, caller: Caller) -> None:
        """Check without a reservation, before a turn opens anything, that a quota is left.

        Raises:
            RequestRejectedError: If nothing is left.
        """
        if caller.quota.tokens_per_day is not None or caller.quota.usd_per_day is not None:
            await self._store.read(lambda db: amounts_left(db, caller, at=time.time()))

    async def reserve(self, caller: Caller, requested: Hold) -> Hold:
        """Reserve a part of the quota before work starts; raises like the function."""
        return await self._store.transact(lambda db: reserve(db, caller, requested))

    def held(self, model: Model, caller: Caller, hold_id: str) -> Model:
        """Return a model that makes no call beyond the quota of the caller.

        Raises:
            RequestRejectedError: If the quota is in US dollars, and the price is unknown.
        """
        quota = caller.quota
        if quota.tokens_per_day is None and quota.usd_per_day is None:
            return model
        check_price(caller, model.name, model.info.price)

        async def reserve_one(used: Usage, read: int, usual: int, price: Price | None) -> int:
            return await self._store.transact(
                lambda db: _reserve_call(db, caller, hold_id, used, read, usual, price)
            )

        return HeldModel(model, reserve_one)

    def release(self, hold: Hold) -> None:
        """Release an unused reservation; returns before that is stored."""
        self._store.post(lambda db: release(db, hold.id))

    async def used(self, caller: Caller) -> DailyUsage:
        """Return the usage of a key today."""
        day = day_of(time.time())
        used = await self._store.usage(caller.key_id, day)
        return replace(used, requests=used.requests + self._requests.get((caller.key_id, day), 0))

    async def flush(self) -> None:
        """Store the request counts since the last call."""
        if not self._requests:
            return
        counted, self._requests = self._requests, {}

        def add(db: Statements) -> None:
            for (key_id, day), count in counted.items():
                used = DailyUsage(key_id=key_id, day=day, requests=count)
                count_usage(db, used, seen_at=time.time())

        await self._store.transact(add)


def _reserve_call(
    db: Statements,
    caller: Caller,
    hold_id: str,
    used: Usage,
    read: int,
    usual: int,
    price: Price | None,
) -> int:
    """Reserve one more call of a turn, and return the token cap of its reply.

    Raises:
        RequestRejectedError: If the quota does not allow it; the hold is then unchanged.
    """
    _lock(db, caller.key_id)
    at = time.time()
    tokens, cost_usd = amounts_left(db, caller, at=at, but=hold_id)
    used_tokens, used_usd = used.input_tokens + used.output_tokens, used.cost_usd or 0.0
    written = usual
    if tokens is not None:
        written = min(written, tokens - used_tokens - read)
    if cost_usd is not None and price is not None and price.output_usd:
        usd = cost_usd - used_usd - read * price.input_usd / 10**6
        written = min(written, int(usd * 10**6 / price.output_usd))
    if written < min(usual, _LEAST_WRITTEN_TOKENS):
        raise RequestRejectedError(
            "too little is left of the daily quota for the next model call",
            why="quota-exceeded",
            hint="it resets at 00:00 UTC; unfinished turns and runs reserve a part of it",
            retry_after_s=_DAY_S - at % _DAY_S,
        )
    if cost_usd is not None and price is not None:
        used_usd += (read * price.input_usd + written * price.output_usd) / 10**6
    _resize(
        db,
        hold_id,
        used_tokens + read + written if tokens is not None else 0,
        used_usd if cost_usd is not None else 0.0,
    )
    return written


def check_price(caller: Caller, model: str, price: Price | None) -> None:
    """Reject a model without a known price if the key has a quota in US dollars.

    Raises:
        RequestRejectedError: If the quota could not be enforced.
    """
    if caller.quota.usd_per_day is not None and price is None:
        raise RequestRejectedError(
            f"no price is known for {model!r}, and this key has a daily quota in US dollars",
            why="unpriced-model",
            hint=f'use another model, or set [models."{model}".price] on the server',
        )


def daily_usage(key_id: str, usage: Usage) -> DailyUsage:
    """Return usage to be counted today; a call without a known price costs nothing here."""
    return DailyUsage(
        key_id=key_id,
        day=day_of(time.time()),
        tokens=usage.input_tokens + usage.output_tokens,
        cost_usd=usage.cost_usd or 0.0,
    )


def day_of(at: float) -> str:
    """Return the day of a time in UTC, such as `2026-01-31`."""
    return datetime.fromtimestamp(at, UTC).date().isoformat()
