"""Store of all runs of a user: one folder each, found by name or prefix, with their status."""

import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from assay.contracts.errors import JournalError, UsageError
from assay.contracts.events import AttemptStarted, BudgetUsed, RunEnded, RunEvent
from assay.contracts.goal import Goal, RunResult, Status
from assay.contracts.messages import Usage
from assay.storage import lock
from assay.storage.codec import event_from_json, fields_of, goal_from_json, goal_to_json, line_of
from assay.storage.journal import EVENTS, read_events
from assay.storage.run_names import new_name
from assay.storage.secure_files import DRAFT, last_line, make_folder, sync_folder, write_file

_REQUEST: Final = "run.json"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]*")
_TRIES: Final = 100

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The request of a run: all data needed to resume it."""

    goal: Goal
    workspace: str
    """The folder on the host; empty if there was none."""
    model: str
    """The requested model name."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Additional JSON values of the entry point."""


class _Written(BaseModel):
    # A later version may write more than this one knows.
    model_config = ConfigDict(extra="ignore", frozen=True)

    created_at: float
    goal: dict[str, Any]
    workspace: str
    model: str
    options: dict[str, Any] = {}


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
    """The statement; empty if it cannot be read."""
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


class RunStore:
    """The runs below `STATE_DIR/runs`. Blocking: commands read small files."""

    def __init__(self, state_dir: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.folder = state_dir / "runs"
        self._clock = clock

    def create(self, request: RunRequest) -> Run:
        """Store a new run under a new name.

        Raises:
            JournalError: If it cannot be written.
        """
        created_at = self._clock()
        fields = {
            "created_at": created_at,
            "goal": goal_to_json(request.goal),
            "workspace": request.workspace,
            "model": request.model,
            "options": dict(request.options),
        }
        try:
            run_id = self._place(line_of(fields))
        except OSError as error:
            raise JournalError(
                f"no run can be written below {str(self.folder)!r}: {error.strerror}",
                hint="make room there, or set another state_dir",
            ) from error
        folder = self.folder / run_id
        return Run(id=run_id, folder=folder, created_at=created_at, request=request)

    def open(self, name: str = "") -> Run:
        """Find a run by name or prefix; without one, the newest.

        Raises:
            UsageError: If no run matches, or several do.
            JournalError: If it cannot be read.
        """
        return self._read(self.find(name))

    def find(self, name: str = "") -> str:
        """Return the full name of a run, including unreadable runs.

        Raises:
            UsageError: If no run matches, or several do.
        """
        names = self._names()
        if not names:
            raise UsageError("there are no runs yet", hint="`assay run GOAL` makes one")
        if not name:
            return max(names, key=lambda one: (self._created_at(one), one))
        if name in names:
            return name
        # Only listed names are ever used as paths.
        meant = sorted(one for one in names if one.startswith(name.lower()))
        if not meant:
            raise UsageError(f"there is no run {name!r}", hint="`assay runs` lists them")
        if len(meant) > 1:
            shown = ", ".join(meant[:5]) + (", …" if len(meant) > 5 else "")  # noqa: PLR2004 - a line's worth
            raise UsageError(
                f"{name!r} is the beginning of {len(meant)} runs", hint=f"they are {shown}"
            )
        return meant[0]

    def list(self, limit: int | None = None) -> tuple[RunSummary, ...]:
        """Return the runs, the newest first, including unreadable ones."""
        names = sorted(self._names(), key=lambda one: (self._created_at(one), one), reverse=True)
        return tuple(self.summary(name) for name in names[:limit])

    def summary(self, run_id: str) -> RunSummary:
        """Return the summary of a run."""
        try:
            run = self._read(run_id)
            outcome, attempts, usage = _progress(run.folder)
        except JournalError as error:
            return RunSummary(
                id=run_id,
                created_at=self._created_at(run_id),
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
            goal=run.request.goal.statement,
            workspace=run.request.workspace,
            model=run.request.model,
            attempts=attempts,
            usage=usage,
            outcome=outcome,
        )

    def delete(self, run_id: str) -> None:
        """Delete a run with all its data.

        Raises:
            UsageError: If a process works on it.
            JournalError: If it cannot be deleted.
        """
        folder = self.folder / run_id
        if lock.is_held(folder):
            raise UsageError(f"a process works on the run {run_id!r}", hint="end it first")
        # Renamed first: a partially deleted folder is no longer a run.
        gone = self.folder / f"{DRAFT}{run_id}"
        try:
            folder.rename(gone)
            shutil.rmtree(gone)
        except OSError as error:
            raise JournalError(f"the run {run_id!r} cannot be removed: {error.strerror}") from error

    def delete_older_than(self, age_s: float) -> tuple[str, ...]:
        """Delete runs older than this, and return their names."""
        oldest = self._clock() - age_s
        old = [
            name
            for name in self._names()
            if self._created_at(name) < oldest and not lock.is_held(self.folder / name)
        ]
        for name in old:
            self.delete(name)
        return tuple(sorted(old))

    def _names(self) -> set[str]:
        try:
            with os.scandir(self.folder) as found:
                return {
                    entry.name
                    for entry in found
                    if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                }
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise JournalError(
                f"the runs in {str(self.folder)!r} cannot be read: {error.strerror}",
                hint="make the folder readable, or set another state_dir",
            ) from error

    def _created_at(self, run_id: str) -> float:
        """Return the creation time of a run from its request file, which is written once."""
        for path in (self.folder / run_id / _REQUEST, self.folder / run_id):
            try:
                return path.stat().st_mtime
            except OSError:
                continue
        return 0.0

    def _place(self, content: bytes) -> str:
        make_folder(self.folder)
        for _ in range(_TRIES):
            name = new_name()
            draft = self.folder / f"{DRAFT}{name}"
            try:
                draft.mkdir(mode=0o700)
                write_file(draft / _REQUEST, content)
                # Fails if a run of this name exists, because no run folder is empty.
                draft.rename(self.folder / name)
            except FileExistsError:
                shutil.rmtree(draft, ignore_errors=True)
                continue
            except OSError:
                shutil.rmtree(draft, ignore_errors=True)
                if (self.folder / name).exists():
                    continue
                raise
            sync_folder(self.folder)
            return name
        raise FileExistsError(errno.EEXIST, "all names are taken")

    def _read(self, run_id: str) -> Run:
        path = self.folder / run_id / _REQUEST
        try:
            written = _Written.model_validate(fields_of(path.read_bytes()))
            goal = goal_from_json(written.goal)
        except OSError as error:
            raise JournalError(f"{str(path)!r} cannot be read: {error.strerror}") from error
        except (ValidationError, JournalError) as error:
            raise JournalError(f"{str(path)!r} is damaged") from error
        return Run(
            id=run_id,
            folder=path.parent,
            created_at=written.created_at,
            request=RunRequest(
                goal=goal,
                workspace=written.workspace,
                model=written.model,
                options=written.options,
            ),
        )


def _progress(folder: Path) -> tuple[RunResult | None, int, Usage]:
    """Return the progress of a run: its outcome if any, attempts and usage."""
    newest = _last_event(folder)
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


def _last_event(folder: Path) -> RunEvent | None:
    """Read only the last event, so that a list of a thousand ended runs is fast."""
    try:
        line = last_line(folder / EVENTS)
    except OSError as error:
        raise JournalError(f"{folder / EVENTS}: {error.strerror}") from error
    return None if line is None else event_from_json(fields_of(line).get("event"))
