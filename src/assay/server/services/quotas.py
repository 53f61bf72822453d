"""Quotas of API keys: requests per minute, parallel runs, tokens and money per day.

Reservations are made in one transaction before work starts, and settled at its end; a model wrapper
reserves each call.
"""

import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from assay.contracts.errors import BudgetExceededError
from assay.contracts.messages import ModelFacts, Price, Reply, Request, Usage
from assay.contracts.ports import Model, OnText, ignore_text
from assay.models.budget import estimate_input_tokens
from assay.server.db.database import Statements
from assay.server.db.models import Caller, Hold, HoldKind, Usages, Used
from assay.server.db.store import Store, count_usage, usage_of
from assay.server.errors import RequestRejectedError

_LOCK: Final = ""
"""Day of a usage row that counts nothing, and only serializes the reservations of a key."""
_LEAST_WRITTEN_TOKENS: Final = 256
"""A shorter reply would break off before it says anything useful."""
_SOON_S: Final = 5.0
_RUN_S: Final = 30.0
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Time of a reservation."""

    at: float
    """Seconds since the epoch."""
    day: str
    """Day in UTC, such as `2026-01-31`."""

    @property
    def day_left_s(self) -> float:
        return _DAY_S - self.at % _DAY_S


def reserve(statements: Statements, caller: Caller, wanted: Hold, now: Now) -> Hold:
    """Reserve the requested amounts, or what is left of them; return the reserved amounts.

    Raises:
        RequestRejectedError: If nothing is left, or the key has too many unfinished runs.
    """
    _lock(statements, caller.key_id)
    if wanted.kind == "run":
        _check_runs(statements, caller)
    tokens, cost_usd = _left(statements, caller, "", now)
    hold = Hold(
        id=wanted.id,
        key_id=caller.key_id,
        kind=wanted.kind,
        target=wanted.target,
        tokens=0 if tokens is None else int(min(wanted.tokens or tokens, tokens)),
        cost_usd=0.0 if cost_usd is None else min(wanted.cost_usd or cost_usd, cost_usd),
        created_at=now.at,
    )
    statements.run(
        "INSERT INTO assay_holds VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            hold.id,
            hold.key_id,
            hold.kind,
            hold.target,
            hold.tokens,
            hold.cost_usd,
            hold.created_at,
        ),
    )
    return hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call to a model that a turn is about to make."""

    used: Used
    """Used by earlier calls of the turn."""
    read_tokens: int
    """Upper estimate."""
    written_tokens: int
    """Maximum length of the reply."""
    price: Price | None


def reserve_call(statements: Statements, caller: Caller, hold: Hold, call: Call, now: Now) -> int:
    """Reserve one more call of a turn, and return the token cap of its reply.

    Raises:
        RequestRejectedError: If the quota does not allow it; the hold is then unchanged.
    """
    _lock(statements, caller.key_id)
    tokens, cost_usd = _left(statements, caller, hold.id, now)
    read, price = call.read_tokens, call.price
    written = call.written_tokens
    if tokens is not None:
        written = min(written, tokens - call.used.tokens - read)
    if cost_usd is not None and price is not None and price.output_usd:
        usd = cost_usd - call.used.cost_usd - _cost_usd(read, 0, price)
        written = min(written, int(usd * 10**6 / price.output_usd))
    if written < min(call.written_tokens, _LEAST_WRITTEN_TOKENS):
        raise _too_little(now)
    statements.run(
        "UPDATE assay_holds SET tokens = ?, cost_usd = ? WHERE id = ?",
        (
            call.used.tokens + read + written if tokens is not None else 0,
            call.used.cost_usd + _cost_usd(read, written, price) if cost_usd is not None else 0.0,
            hold.id,
        ),
    )
    return written


def _cost_usd(read: int, written: int, price: Price | None) -> float:
    if price is None:
        return 0.0
    return (read * price.input_usd + written * price.output_usd) / 10**6


def name_run(statements: Statements, hold: Hold, run_id: str) -> None:
    """Store the id of the run that a reservation belongs to."""
    statements.run("UPDATE assay_holds SET target = ? WHERE id = ?", (run_id, hold.id))


def release(statements: Statements, hold_id: str) -> None:
    """Release a reservation."""
    statements.run("DELETE FROM assay_holds WHERE id = ?", (hold_id,))


def settle(statements: Statements, hold_id: str, used: Usages, now: Now) -> None:
    """Count the actual usage, and release the reservation."""
    count_usage(statements, used, seen_at=now.at)
    release(statements, hold_id)


def shrink(statements: Statements, hold: Hold, used: Usages, now: Now) -> None:
    """Count a run's usage so far, and keep the rest reserved, since the run resumes later."""
    count_usage(statements, used, seen_at=now.at)
    # Not below 1 token or above zero dollars: 0 means that the key has no such quota.
    tokens = max(1, hold.tokens - used.used.tokens) if hold.tokens else 0
    cost_usd = max(1e-9, hold.cost_usd - used.used.cost_usd) if hold.cost_usd else 0.0
    statements.run(
        "UPDATE assay_holds SET tokens = ?, cost_usd = ? WHERE id = ?", (tokens, cost_usd, hold.id)
    )


def drop_abandoned(statements: Statements) -> None:
    """Release reservations of a killed process; unfinished runs keep theirs."""
    statements.run(
        "DELETE FROM assay_holds WHERE kind = 'turn' OR NOT EXISTS ("
        "SELECT 1 FROM assay_runs WHERE assay_runs.id = assay_holds.target "
        "AND assay_runs.key_id = assay_holds.key_id AND status IN ('queued', 'running'))"
    )


def _lock(statements: Statements, key_id: str) -> None:
    # SQLite locks the whole file in each transaction. PostgreSQL locks this row until its end.
    statements.run(
        "INSERT INTO assay_usage VALUES (?, ?, 0, 0, 0) "
        "ON CONFLICT (key_id, day) DO UPDATE SET tokens = assay_usage.tokens",
        (key_id, _LOCK),
    )


def _held(statements: Statements, key_id: str, but: str) -> Used:
    sql = (
        "SELECT COALESCE(SUM(tokens), 0), COALESCE(SUM(cost_usd), 0) FROM assay_holds "
        "WHERE key_id = ? AND id <> ?"
    )
    tokens, cost_usd = statements.rows(sql, (key_id, but))[0]
    return Used(tokens=int(tokens), cost_usd=float(cost_usd))


def _count(statements: Statements, key_id: str, kind: HoldKind) -> int:
    sql = "SELECT COUNT(*) FROM assay_holds WHERE key_id = ? AND kind = ?"
    return int(statements.rows(sql, (key_id, kind))[0][0])


def _check_runs(statements: Statements, caller: Caller) -> None:
    unfinished = _count(statements, caller.key_id, "run")
    if unfinished >= caller.quota.runs:
        raise RequestRejectedError(
            f"the quota of {caller.quota.runs} unfinished runs is used up",
            why="quota-exceeded",
            hint="wait for one to end, or cancel one",
            retry_after_s=_RUN_S,
        )


def _left(
    statements: Statements, caller: Caller, but: str, now: Now
) -> tuple[int | None, float | None]:
    """Return what is neither used nor reserved; None without a quota."""
    quota = caller.quota
    used = usage_of(statements, caller.key_id, now.day)
    held = _held(statements, caller.key_id, but)
    tokens = cost_usd = None
    if quota.tokens_per_day is not None:
        tokens = quota.tokens_per_day - used.tokens - held.tokens
        if tokens <= 0:
            gone = used.tokens >= quota.tokens_per_day
            raise _none_left(f"token quota ({quota.tokens_per_day:,})", now, gone=gone)
    if quota.usd_per_day is not None:
        cost_usd = quota.usd_per_day - used.cost_usd - held.cost_usd
        if cost_usd <= 0:
            gone = used.cost_usd >= quota.usd_per_day
            raise _none_left(f"cost quota ({quota.usd_per_day:g} USD)", now, gone=gone)
    return tokens, cost_usd


def _none_left(what: str, now: Now, *, gone: bool) -> RequestRejectedError:
    if gone:
        return RequestRejectedError(
            f"daily {what} is used up",
            why="quota-exceeded",
            hint="it resets at 00:00 UTC",
            retry_after_s=now.day_left_s,
        )
    return RequestRejectedError(
        f"what is left of the daily {what} is reserved by unfinished turns and runs",
        why="quota-exceeded",
        hint="try again when one has ended; a run reserves its `budget`, or all that is left",
        retry_after_s=_SOON_S,
    )


def _too_little(now: Now) -> RequestRejectedError:
    return RequestRejectedError(
        "too little is left of the daily quota for the next model call",
        why="quota-exceeded",
        hint="it resets at 00:00 UTC; unfinished turns and runs reserve a part of it",
        retry_after_s=now.day_left_s,
    )


ReserveCall = Callable[[Call], Awaitable[int]]
"""Callback that returns the token cap of the reply; raises `RequestRejectedError`."""


class HeldModel:
    """Model of one turn: reserves the estimate of each call, and counts its actual usage."""

    def __init__(self, model: Model, reserve: ReserveCall) -> None:
        self._model = model
        self._reserve = reserve
        self._used = Used()

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def facts(self) -> ModelFacts:
        return self._model.facts

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        usual = self.facts.output_limit(request)
        call = Call(
            used=self._used,
            read_tokens=estimate_input_tokens(request),
            written_tokens=usual,
            price=self.facts.price,
        )
        try:
            written = await self._reserve(call)
        except RequestRejectedError as refused:
            raise BudgetExceededError(str(refused), hint=refused.hint) from refused
        if written < usual:
            request = replace(request, max_output_tokens=written)
        reply = await self._model.reply(request, on_text=on_text)
        used = reply.usage
        self._used = Used(
            tokens=self._used.tokens + used.input_tokens + used.output_tokens,
            cost_usd=self._used.cost_usd + (used.cost_usd or 0.0),
        )
        return reply


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
