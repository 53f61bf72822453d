"""What the service keeps of people, keys, sessions and runs, as values."""

from dataclasses import dataclass, field
from typing import Literal

Role = Literal["admin", "user", "read-only"]
LOCAL: str = "local"
"""Who asks where no key is needed: whoever sits at this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a key may use; None is no cap."""

    requests_per_minute: int
    runs: int
    """Unfinished at once."""
    tokens_per_day: int | None = None
    usd_per_day: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key without the key: that is shown once, and kept as a digest."""

    id: str
    user: str
    name: str
    role: Role
    created_at: float
    """Seconds since the epoch, as everywhere."""
    revoked_at: float | None = None
    last_used_at: float | None = None
    requests_per_minute: int | None = None
    runs: int | None = None
    tokens_per_day: int | None = None
    usd_per_day: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a key has used on one day."""

    requests: int = 0
    tokens: int = 0
    cost_usd: float = 0.0


HoldKind = Literal["turn", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A part of a key's quota, reserved for a turn or a run until it ends."""

    id: str
    key_id: str
    kind: HoldKind
    target: str
    """Id of the run; empty for a turn, and for a run that has no id yet."""
    tokens: int
    """0 if the key has no token quota."""
    cost_usd: float
    """0 if the key has no quota in US dollars."""
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sends a request, and what they may do."""

    user: str
    role: Role
    key_id: str
    """Under which usage is counted."""
    key_name: str
    quota: Quota
    by_key: bool

    @property
    def may_write(self) -> bool:
        return self.role != "read-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A conversation in a list; what was said is in its folder."""

    id: str
    user: str
    title: str
    created_at: float
    updated_at: float
    turns: int = 0
    model: str = ""
    key_id: str = ""
    """Of whoever asked for the last turn."""
    busy: bool = False
    """A turn is under way, or was when the process died."""


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
    """A run in a list; what happened is in its folder."""

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
    """Counted to the quota of its key so far; `cost_usd` as well."""
    cost_usd: float = 0.0
    grade: str = ""
    """How strong the proof of an accepted run is; empty for all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Something that somebody did, or tried to do."""

    id: str
    at: float
    user: str
    key_id: str
    action: str
    """What was done, as `session.create`."""
    target: str
    """To what, by its id."""
    outcome: str
    """`done`, or why not; how an execution ended."""
    request_id: str = ""
    part: str = ""
    """Of a session or run: `turn 2, step 1`, `attempt 3`."""
    model: str = ""
    backend: str = ""
    code_sha256: str = ""
    """Of the code of a cell, the arguments of a tool, or the files of an attempt."""
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Which part of a list is wanted: what is older than `before`, the newest first."""

    limit: int = 50
    before: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Which entries of the audit log are wanted; an empty text does not filter."""

    limit: int = 100
    before: float | None = None
    after_entry: tuple[float, str] | None = None
    """Time and id of the last entry of the page before."""
    since: float | None = None
    user: str = ""
    action: str = ""
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usages:
    """What is to be added to what keys have used."""

    key_id: str
    day: str
    used: Used = field(default_factory=Used)
