"""Audit log of executions: caller, code digest, model, backend and result."""

import hashlib
import logging
import time
from collections.abc import Callable
from typing import Final

from assay.contracts.chat import CellEnded, CellStarted, ChatEvent, ToolUsed, TurnEnded
from assay.contracts.events import (
    AttemptStarted,
    Executed,
    FilesChanged,
    RolledBack,
    RunEnded,
    RunEvent,
    Verified,
)
from assay.server.db.models import AuditEntry
from assay.server.db.store import AUDIT, Store

_LOG: Final = logging.getLogger("assay.audit")

NewEntry = Callable[..., AuditEntry]
"""`AuditEntry` with the fields that all entries of a turn or run share."""


def log(entry: AuditEntry) -> None:
    """Write an entry to the process log, too."""
    names = ("user", "action", "target", "part", "outcome", "request_id")
    _LOG.info("audit", extra={name: getattr(entry, name) for name in names})


def post(store: Store, entry: AuditEntry) -> None:
    """Write an entry without waiting for the database."""
    store.post(lambda db: AUDIT.add(db, entry))
    log(entry)


class TurnAudit:
    """Collects an audit entry for a turn, and for each of its cells and tool calls."""

    def __init__(self, new_entry: NewEntry, *, is_live: bool = True) -> None:
        """Start a turn; `is_live` tells whether its events arrive as they happen."""
        self._new_entry = new_entry
        self._is_live = is_live
        self._started = self._cell_started = time.monotonic()
        self._cell: CellStarted | None = None
        self.entries: list[AuditEntry] = []
        """To be written at the end of the turn. After a crash, the stored events provide them."""

    def on_event(self, event: ChatEvent) -> None:
        """Handle an event of the turn."""
        match event:
            case CellStarted():
                self._cell, self._cell_started = event, time.monotonic()
            case CellEnded():
                self._cell = None
                self._add_step(event, "cell.run", _outcome(event), event.code, event.duration_s)
            case ToolUsed():
                self._add_step(event, "tool.run", _outcome(event), event.arguments)
            case TurnEnded():
                if self._cell is not None:
                    took_s = self._since(self._cell_started)
                    self._add_step(self._cell, "cell.run", "interrupted", self._cell.code, took_s)
                self._add(
                    "turn.run",
                    event.error.type if event.error else event.status,
                    part=f"turn {event.turn}",
                    duration_s=self._since(self._started),
                )
            case _:
                pass

    def _since(self, started: float) -> float | None:
        return time.monotonic() - started if self._is_live else None

    def _add_step(
        self,
        step: CellStarted | CellEnded | ToolUsed,
        action: str,
        outcome: str,
        code: str,
        duration_s: float | None = None,
    ) -> None:
        part = f"turn {step.turn}, step {step.step}"
        self._add(action, outcome, part=part, code_sha256=digest(code), duration_s=duration_s)

    def _add(self, action: str, outcome: str, **more: object) -> None:
        entry = self._new_entry(action=action, outcome=outcome, **more)
        self.entries.append(entry)
        log(entry)


def _outcome(step: CellEnded | ToolUsed) -> str:
    return "failed" if step.failed else "succeeded"


class RunAudit:
    """Writes an audit entry for each attempt of a run."""

    def __init__(self, new_entry: NewEntry, store: Store) -> None:
        self._new_entry = new_entry
        self._store = store
        self._attempt = 0
        self._started = time.monotonic()
        self._tree = ""
        self._outcome = ""

    def on_event(self, event: RunEvent) -> None:
        """Handle an event of the run."""
        match event:
            case AttemptStarted() | FilesChanged() | Executed() | Verified() | RolledBack():
                if event.attempt != self._attempt:
                    self.finish("abandoned")
                    self._attempt, self._started = event.attempt, time.monotonic()
            case _:
                pass
        match event:
            case FilesChanged():
                self._tree = event.tree
            case Executed():
                passed = all(report.passed for report in event.reports)
                self._outcome = "passed" if passed else "failed"
            case Verified():
                self._outcome = "accepted" if event.verdict.accepted else "rejected"
            case RolledBack():
                self._outcome = "rolled back"
            case RunEnded():
                self.finish(event.outcome.status.value)
            case _:
                pass

    def finish(self, outcome: str) -> None:
        """Write the entry of the last attempt, with this outcome if it has none of its own."""
        if self._attempt:
            entry = self._new_entry(
                action="attempt.run",
                outcome=self._outcome or outcome,
                part=f"attempt {self._attempt}",
                code_sha256=self._tree,
                duration_s=time.monotonic() - self._started,
            )
            post(self._store, entry)
        self._attempt, self._tree, self._outcome = 0, "", ""


def digest(code: str) -> str:
    """Return the SHA-256 of code."""
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
