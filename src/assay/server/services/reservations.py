"""Quota reservations: made in one transaction before work starts, and settled at its end.

The usage of a key and its open reservations together never exceed its quota. Transactions for one
key wait for each other on a lock row, also across processes.
"""

from dataclasses import dataclass
from typing import Final

from assay.contracts.messages import Price
from assay.server.db.database import Statements
from assay.server.db.models import Caller, Hold, HoldKind, Usages, Used
from assay.server.db.store import count_usage, usage_of
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
