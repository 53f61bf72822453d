"""Store of all runs of a user: one folder each, found by name or prefix, with their status."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from assay.contracts.errors import JournalError
from assay.contracts.events import AttemptStarted, BudgetUsed, RunEnded
from assay.contracts.goal import RunRequest, RunResult, Status
from assay.contracts.jsonable import jsonable
from assay.contracts.messages import Usage
from assay.files import last_line
from assay.storage import lock
from assay.storage.codec import event_from_json, fields_of, line_of, request_from_json
from assay.storage.folder_store import FolderStore
from assay.storage.journal import EVENTS, read_events

RunStatus = Literal[
    "running",
    "stopped",
    "damaged",
    "accepted",
    "not_accepted",
    "out_of_budget",
    "tampered",
    "interrupted",
    "failed",
]
"""How it ended; `running` while a process works on it, `stopped` if that process died, `damaged` if
the record cannot be read."""


class _Written(BaseModel):
    # A later version may write more than this one knows.
    model_config = ConfigDict(extra="ignore", frozen=True)

    created_at: float
    request: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run with its request."""

    id: str
    folder: Path
    created_at: float
    """Seconds since the epoch."""
    request: RunRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run in a list."""

    id: str
    created_at: float
    status: RunStatus
    goal: str = ""
    """Empty if it cannot be read."""
    workspace: str = ""
    model: str = ""
    attempts: int = 0
    usage: Usage = field(default_factory=Usage)
    outcome: RunResult | None = None
    trouble: str = ""
    """Why it is `damaged`."""

    @property
    def resumable(self) -> bool:
        return self.status in {"stopped", Status.INTERRUPTED, Status.FAILED, Status.OUT_OF_BUDGET}


class RunStore(FolderStore):
    """The runs below `STATE_DIR/runs`."""

    noun = "run"
    request = "run.json"
    dated_by = (request,)
    hints = ("`assay run GOAL` makes one", "`assay runs` lists them")

    def __init__(self, state_dir: Path, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(state_dir / "runs")
        self._clock = clock

    def create(self, request: RunRequest) -> Run:
        """Store a new run under a new name.

        Raises:
            JournalError: If it cannot be written.
        """
        created_at = self._clock()
        folder = self.place(line_of({"created_at": created_at, "request": jsonable(request)}))
        return Run(id=folder.name, folder=folder, created_at=created_at, request=request)

    def open(self, name: str = "") -> Run:
        """Find a run by name or prefix; without one, the newest.

        Raises:
            UsageError: If no run matches, or several do.
            JournalError: If it cannot be read.
        """
        return self._read(self.find(name))

    def list(self, limit: int | None = None) -> tuple[RunSummary, ...]:
        """Return the runs, the newest first, including unreadable ones."""
        return tuple(self.summary(name) for name in self.names()[:limit])

    def summary(self, run_id: str) -> RunSummary:
        """Return the summary of a run."""
        try:
            run = self._read(run_id)
            outcome, attempts, usage = _progress(run.folder)
        except JournalError as error:
            return RunSummary(
                id=run_id,
                created_at=self.date_of(run_id),
                status="damaged",
                trouble=str(error),
            )
        status: RunStatus = "stopped"
        if lock.is_held(run.folder):
            status = "running"
        elif outcome is not None:
            status = outcome.status.value
        return RunSummary(
            id=run_id,
            created_at=run.created_at,
            status=status,
            goal=run.request.goal,
            workspace=str(run.request.workspace or ""),
            model=run.request.model,
            attempts=attempts,
            usage=usage,
            outcome=outcome,
        )

    def delete_older_than(self, age_s: float) -> tuple[str, ...]:
        """Delete runs older than this, and return their names."""
        oldest = self._clock() - age_s
        old = [
            name
            for name in self.names()
            if self.date_of(name) < oldest and not lock.is_held(self.folder / name)
        ]
        for name in old:
            self.delete(name)
        return tuple(sorted(old))

    def _read(self, run_id: str) -> Run:
        path = self.folder / run_id / self.request
        try:
            written = _Written.model_validate(fields_of(path.read_bytes()))
            request = request_from_json(written.request)
        except OSError as error:
            raise JournalError(f"{str(path)!r} cannot be read: {error.strerror}") from error
        except (ValidationError, JournalError) as error:
            raise JournalError(f"{str(path)!r} is damaged") from error
        return Run(id=run_id, folder=path.parent, created_at=written.created_at, request=request)


def _progress(folder: Path) -> tuple[RunResult | None, int, Usage]:
    """Return the progress of a run: its outcome if any, attempts and usage."""
    try:
        # Only the last event, so that a list of a thousand ended runs is fast.
        line = last_line(folder / EVENTS)
    except OSError as error:
        raise JournalError(f"{folder / EVENTS}: {error.strerror}") from error
    newest = None if line is None else event_from_json(fields_of(line).get("event"))
    if isinstance(newest, RunEnded):
        return newest.outcome, newest.outcome.attempts, newest.outcome.usage
    attempts, usage = 0, Usage()
    for recorded in read_events(folder):
        match recorded.event:
            case AttemptStarted(attempt=attempt):
                attempts = max(attempts, attempt)
            case BudgetUsed():
                usage = recorded.event.usage
            case _:
                pass
    return None, attempts, usage
