"""Progress of a run, computed from its events. Pure."""

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
from assay.contracts.goal import Goal, RunResult
from assay.contracts.messages import Usage
from assay.contracts.verdict import TestMatrix

AttemptState = Literal["running", "failed", "rejected", "accepted", "rolled_back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptProgress:
    """One attempt."""

    number: int
    move: str
    status: AttemptState = "running"
    changed: tuple[str, ...] = ()
    tests: dict[str, int] = field(default_factory=dict[str, int])
    """Number of tests by status."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run."""

    goal: Goal | None = None
    model: str = ""
    pristine: str = ""
    """Digest of the original workspace."""
    tree: str = ""
    """Digest of the newest state; after the end, of the accepted or best one."""
    steps: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    attempts: tuple[AttemptProgress, ...] = ()
    test_matrix: TestMatrix = field(default_factory=TestMatrix)
    usage: Usage = field(default_factory=Usage)
    wall_s: float = 0.0
    outcome: RunResult | None = None

    def after(self, event: RunEvent) -> "Progress":
        """Return the progress with one more event."""
        match event:
            case RunStarted():
                return replace(
                    self,
                    goal=event.goal,
                    model=event.model,
                    pristine=event.tree,
                    tree=event.tree,
                )
            case Planned():
                return replace(self, steps=event.steps, checks=event.checks)
            case AttemptStarted():
                begun = AttemptProgress(number=event.attempt, move=event.move)
                return replace(self, attempts=(*self.attempts, begun))
            case BudgetUsed():
                return replace(self, usage=event.usage, wall_s=event.wall_s)
            case RunEnded():
                outcome = event.outcome
                return replace(
                    self,
                    outcome=outcome,
                    tree=outcome.tree or self.tree,
                    test_matrix=outcome.test_matrix
                    if outcome.test_matrix.rows
                    else self.test_matrix,
                    usage=outcome.usage,
                    wall_s=outcome.wall_s,
                )
            case FilesChanged() | Executed() | Verified() | RolledBack() | Reflected():
                return self._after_work(event)
            case _:
                return self

    def _after_work(
        self, event: FilesChanged | Executed | Verified | RolledBack | Reflected
    ) -> "Progress":
        match event:
            case FilesChanged():
                changed = tuple(str(change.path) for change in event.changes)
                return replace(self._with(event.attempt, changed=changed), tree=event.tree)
            case Executed():
                tests: dict[str, int] = {}
                for row in event.test_matrix.rows[-1:]:
                    for ending in row.statuses.values():
                        tests[ending.value] = tests.get(ending.value, 0) + 1
                passed = all(report.passed for report in event.reports)
                told = self._with(
                    event.attempt, tests=tests, status="running" if passed else "failed"
                )
                return replace(told, test_matrix=event.test_matrix)
            case Verified():
                accepted = event.verdict.accepted
                return self._with(
                    event.attempt,
                    status="accepted" if accepted else "rejected",
                    note=event.verdict.reason,
                )
            case RolledBack():
                return self._with(event.attempt, status="rolled_back")
            case Reflected():
                return self._with(event.attempt, note=event.lesson)

    def _with(self, number: int, **changes: Any) -> "Progress":
        return replace(
            self,
            attempts=tuple(
                replace(one, **changes) if one.number == number else one for one in self.attempts
            ),
        )


def progress_of(events: Iterable[RunEvent]) -> Progress:
    """Compute the progress of a run from its first event on."""
    progress = Progress()
    for event in events:
        progress = progress.after(event)
    return progress
