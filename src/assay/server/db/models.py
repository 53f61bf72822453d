"""Rows of the server's database, as values: users, API keys, sessions and runs."""

import secrets
import time
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["admin", "user", "read-only"]
LOCAL: str = "local"
"""Id of the caller if no key is needed: the local user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Quotas of an API key; None is no cap."""

    requests_per_minute: int
    runs: int
    """Maximum number of unfinished runs."""
    tokens_per_day: int | None = None
    usd_per_day: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """An API key without its secret, which is shown once and stored as a digest."""

    id: str
    user: str
    name: str
    role: Role
    created_at: float
    """Seconds since the epoch, as in all rows."""
    revoked_at: float | None = None
    last_used_at: float | None = None
    requests_per_minute: int | None = None
    runs: int | None = None
    tokens_per_day: int | None = None
    usd_per_day: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyUsage:
    """Usage of an API key on one day."""

    key_id: str
    day: str
    """Day in UTC, such as `2026-01-31`."""
    requests: int = 0
    tokens: int = 0
    cost_usd: float = 0.0


HoldKind = Literal["turn", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A reservation in the quota of a key, for a turn or a run until it ends."""

    id: str
    key_id: str
    kind: HoldKind
    target: str
    """Id of the run; empty for a turn, and for a run without an id yet."""
    tokens: int
    """0 if the key has no token quota."""
    cost_usd: float
    """0 if the key has no quota in US dollars."""
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a request, with its rights."""

    user: str
    role: Role
    key_id: str
    """Key id for usage counts."""
    key_name: str
    quota: Quota
    by_key: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A session in a list; its events are in its folder."""

    id: str
    user: str
    title: str
    created_at: float
    updated_at: float
    turns: int = 0
    model: str = ""
    key_id: str = ""
    """Key of the caller of the last turn."""
    busy: bool = False
    """A turn is running, or was when the process died."""


RunState = Literal[
    "queued",
    "running",
    "accepted",
    "not_accepted",
    "out_of_budget",
    "tampered",
    "interrupted",
    "failed",
    "cancelled",
]
UNFINISHED: tuple[RunState, ...] = ("queued", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in a list; its events are in its folder."""

    id: str
    user: str
    key_id: str
    goal: str
    status: RunState
    model: str
    created_at: float
    ended_at: float | None = None
    error: str = ""
    tokens: int = 0
    """Tokens counted to the quota of its key so far; `cost_usd` likewise."""
    cost_usd: float = 0.0
    grade: str = ""
    """Grade of an accepted run; empty for all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An action of a caller, or an attempt at one."""

    id: str = field(default_factory=lambda: secrets.token_hex(8))
    at: float = field(default_factory=time.time)
    user: str
    key_id: str
    action: str
    """The action, such as `session.create`."""
    target: str
    """Id of the object."""
    outcome: str
    """`done`, or the reason of a rejection; the result of an execution."""
    request_id: str = ""
    part: str = ""
    """Part of a session or run: `turn 2, step 1`, `attempt 3`."""
    model: str = ""
    backend: str = ""
    code_sha256: str = ""
    """Digest of the code of a cell, the arguments of a tool, or the files of an attempt."""
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a list: entries older than `before`, the newest first."""

    limit: int = 50
    before: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Filters for audit entries; an empty text does not filter."""

    limit: int = 100
    before: float | None = None
    after_entry: tuple[float, str] | None = None
    """Time and id of the last entry on the previous page."""
    since: float | None = None
    user: str = ""
    action: str = ""
    target: str = ""
