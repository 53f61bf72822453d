"""Audit log of executions: caller, code digest, place and result."""

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from assay.contracts.chat import (
    CellEnded,
    CellStarted,
    ChatEvent,
    ToolUsed,
    TurnEnded,
    TurnStarted,
)
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
from assay.server.db.store import Store, write_audit

_LOG: Final = logging.getLogger("assay.audit")

Keep = Callable[[AuditEntry], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """The caller and the context of an execution."""

    user: str
    key_id: str
    target: str
    """Id of the session or run."""
    model: str
    backend: str

    def entry(self, action: str, outcome: str, **more: object) -> AuditEntry:
        """Build an audit entry."""
        entry = AuditEntry(
            id=secrets.token_hex(8),
            at=time.time(),
            user=self.user,
            key_id=self.key_id,
            action=action,
            target=self.target,
            outcome=outcome,
            model=self.model,
            backend=self.backend,
        )
        return replace(entry, **more)


def keeper(store: Store) -> Keep:
    """Return a writer that does not wait for the database."""

    def keep(entry: AuditEntry) -> None:
        store.post(lambda statements: write_audit(statements, entry))
        log(entry)

    return keep


def log(entry: AuditEntry) -> None:
    """Write an entry to the process log, too."""
    names = ("user", "action", "target", "part", "outcome", "request_id")
    _LOG.info("audit", extra={name: getattr(entry, name) for name in names})


class TurnAudit:
    """Writes an audit entry for a turn, and for each of its cells and tool calls."""

    def __init__(self, acting: Acting, keep: Keep) -> None:
        self._acting = acting
        self._keep = keep
        self._began = time.monotonic()
        self._cell: CellStarted | None = None
        self._cell_began = 0.0

    def hear(self, event: ChatEvent) -> None:
        """Handle an event of the turn."""
        match event:
            case TurnStarted():
                self._began = time.monotonic()
            case CellStarted():
                self._cell, self._cell_began = event, time.monotonic()
            case CellEnded():
                self._cell = None
                outcome = "failed" if event.failed else "succeeded"
                self._write_cell(event, outcome, event.duration_s)
            case ToolUsed():
                self._write(
                    "tool.run",
                    "failed" if event.failed else "succeeded",
                    part=f"turn {event.turn}, step {event.step}",
                    code_sha256=digest(event.arguments),
                )
            case TurnEnded():
                if self._cell is not None:
                    took_s = time.monotonic() - self._cell_began
                    self._write_cell(self._cell, "interrupted", took_s)
                took_s = time.monotonic() - self._began
                outcome = event.error.type if event.error else event.status
                self._write("turn.run", outcome, part=f"turn {event.turn}", duration_s=took_s)
            case _:
                pass

    def _write_cell(self, cell: CellStarted | CellEnded, outcome: str, duration_s: float) -> None:
        self._write(
            "cell.run",
            outcome,
            part=f"turn {cell.turn}, step {cell.step}",
            code_sha256=digest(cell.code),
            duration_s=duration_s,
        )

    def _write(self, action: str, outcome: str, **more: object) -> None:
        self._keep(self._acting.entry(action, outcome, **more))


def cut_off(events: Iterable[ChatEvent], turn: int, acting: Acting) -> list[AuditEntry]:
    """Return the entries of a turn that a crash interrupted."""
    running: CellStarted | None = None
    for event in events:
        if isinstance(event, CellStarted) and event.turn == turn:
            running = event
        elif isinstance(event, CellEnded) and event.turn == turn:
            running = None
    found = [acting.entry("turn.run", "interrupted", part=f"turn {turn}")]
    if running is not None:
        part = f"turn {turn}, step {running.step}"
        sha256 = digest(running.code)
        found.append(acting.entry("cell.run", "interrupted", part=part, code_sha256=sha256))
    return found


class RunAudit:
    """Writes an audit entry for each attempt of a run."""

    def __init__(self, acting: Acting, keep: Keep) -> None:
        self._acting = acting
        self._keep = keep
        self._attempt = 0
        self._began = time.monotonic()
        self._tree = ""
        self._outcome = ""

    def hear(self, event: RunEvent) -> None:
        """Handle an event of the run."""
        match event:
            case AttemptStarted():
                self._enter(event.attempt)
            case FilesChanged():
                self._enter(event.attempt)
                self._tree = event.tree
            case Executed():
                self._enter(event.attempt)
                passed = all(report.passed for report in event.reports)
                self._outcome = "passed" if passed else "failed"
            case Verified():
                self._enter(event.attempt)
                self._outcome = "accepted" if event.verdict.accepted else "rejected"
            case RolledBack():
                self._enter(event.attempt)
                self._outcome = "rolled back"
            case RunEnded():
                self.finish(event.outcome.status.value)
            case _:
                pass

    def finish(self, outcome: str) -> None:
        """Write the entry of the last attempt, with this outcome if it has none of its own."""
        if self._attempt:
            entry = self._acting.entry(
                "attempt.run",
                self._outcome or outcome,
                part=f"attempt {self._attempt}",
                code_sha256=self._tree,
                duration_s=time.monotonic() - self._began,
            )
            self._keep(entry)
        self._attempt, self._tree, self._outcome = 0, "", ""

    def _enter(self, attempt: int) -> None:
        if attempt != self._attempt:
            self.finish("abandoned")
            self._attempt, self._began = attempt, time.monotonic()


def digest(code: str) -> str:
    """Return the SHA-256 of code."""
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
