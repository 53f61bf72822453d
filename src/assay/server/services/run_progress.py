"""Progress of a run, computed from its events. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from assay.contracts.events import (
    AttemptStarted,
    BudgetUsed,
    Executed,
    FilesChanged,
    Planned,
    Reflected,
    RolledBack,
    RunEnded,
    RunEvent,
    RunStarted,
    Verified,
)
from assay.contracts.goal import RunResult, RunSpec
from assay.contracts.messages import Usage
from assay.contracts.verdict import TestMatrix

AttemptState = Literal["running", "failed", "rejected", "accepted", "rolled_back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptProgress:
    """One attempt."""

    number: int
    action: str
    status: AttemptState = "running"
    changed: tuple[str, ...] = ()
    tests: dict[str, int] = field(default_factory=dict[str, int])
    """Number of tests by status."""
    note: str = ""


@dataclass(slots=True, kw_only=True)
class RunProgress:
    """Progress of a run."""

    spec: RunSpec | None = None
    model: str = ""
    pristine: str = ""
    """Digest of the original workspace."""
    tree: str = ""
    """Digest of the newest state; after the end, of the accepted or best one."""
    steps: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    attempts: list[AttemptProgress] = field(default_factory=list[AttemptProgress])
    test_matrix: TestMatrix = field(default_factory=TestMatrix)
    usage: Usage = field(default_factory=Usage)
    wall_s: float = 0.0
    outcome: RunResult | None = None

    def apply(self, event: RunEvent) -> None:
        """Add one more event."""
        match event:
            case RunStarted():
                self.spec, self.model = event.spec, event.model
                self.pristine = self.tree = event.tree
            case Planned():
                self.steps, self.checks = event.steps, event.checks
            case AttemptStarted():
                self.attempts.append(AttemptProgress(number=event.attempt, action=event.action))
            case BudgetUsed():
                self.usage, self.wall_s = event.usage, event.wall_s
            case FilesChanged():
                changed = tuple(str(change.path) for change in event.changes)
                self._change(event.attempt, changed=changed)
                self.tree = event.tree
            case Executed():
                rows = event.test_matrix.rows
                statuses = rows[-1].statuses.values() if rows else ()
                tests = dict(Counter(status.value for status in statuses))
                passed = all(report.passed for report in event.reports)
                status = "running" if passed else "failed"
                self._change(event.attempt, tests=tests, status=status)
                self.test_matrix = event.test_matrix
            case Verified():
                status = "accepted" if event.verdict.accepted else "rejected"
                self._change(event.attempt, status=status, note=event.verdict.reason)
            case RolledBack():
                self._change(event.attempt, status="rolled_back")
            case Reflected():
                self._change(event.attempt, note=event.lesson)
            case RunEnded():
                self.outcome = outcome = event.outcome
                self.tree = outcome.tree or self.tree
                if outcome.test_matrix.rows:
                    self.test_matrix = outcome.test_matrix
                self.usage, self.wall_s = outcome.usage, outcome.wall_s
            case _:
                pass

    def _change(self, number: int, **changes: Any) -> None:
        self.attempts = [
            replace(one, **changes) if one.number == number else one for one in self.attempts
        ]


def progress_of(events: Iterable[RunEvent]) -> RunProgress:
    """Compute the progress of a run from its first event on."""
    progress = RunProgress()
    for event in events:
        progress.apply(event)
    return progress
