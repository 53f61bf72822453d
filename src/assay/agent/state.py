"""The state of a run between two steps: plain values that are stored as JSON."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from pydantic import TypeAdapter

from assay.contracts.events import ActionKind
from assay.contracts.goal import RunResult
from assay.contracts.lessons import Snippet
from assay.contracts.messages import Message, Reply, Usage
from assay.contracts.verdict import (
    CheckReport,
    Finding,
    Grade,
    TestMatrix,
    TestResult,
    Verdict,
)
from assay.verify.spec import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a run: its targets, steps and checks."""

    steps: tuple[str, ...] = ()
    targets: tuple[PurePosixPath, ...] = ()
    checks: tuple[str, ...] = ()
    protected: tuple[PurePosixPath, ...] = ()
    most: Grade = Grade.PROVEN
    related: tuple[PurePosixPath, ...] = ()
    """Files that the tests import, existing or missing, to select what the model sees first."""
    fails_now: str = ""
    """The failures of the checks on the existing files."""
    failing: tuple[TestResult, ...] = ()
    """The first tests that fail on the existing files; the model receives their source."""
    remark: str = ""
    """Tests that cannot pass in the sandbox, with the option that would change that."""
    hangs: bool = False
    """Whether a check hung on the original files."""
    judged_by_model: bool = False
    """Whether the model judges the program's output, because no check failed before."""
    unchecked: str = ""
    """Where the model's replies were cut off before they had a test; empty if they were not."""
    pristine: str = ""
    """The digest of the workspace, including all tests."""
    lessons: tuple[str, ...] = ()
    lesson_ids: tuple[str, ...] = ()
    snippets: tuple[Snippet, ...] = ()
    """Snippets of earlier runs whose tests passed again in this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAction:
    """The next action."""

    action: ActionKind
    temperature: float | None
    base: int = 0
    """The attempt to start from; 0: the original workspace."""
    other: int = 0
    """The attempt to combine it with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt, with its files and results."""

    number: int
    action: ActionKind
    tree: str
    context: tuple[Message, ...] = ()
    """The messages that led to it, which a repair continues."""
    complaint: str = ""
    """Why there is nothing to run: no usable reply, or blocked by screening."""
    blocked: str = ""
    """What the model needs, if it said that it cannot continue."""
    cut_off: str = ""
    """Where its last replies were cut off by length before they asked for anything."""
    reports: tuple[CheckReport, ...] = ()
    signatures: tuple[str, ...] = ()
    """The fingerprints of its failures."""
    found: tuple[Finding, ...] = ()
    """Findings before the independent check."""
    verdict: Verdict | None = None
    base: int = 0
    other: int = 0
    """The second attempt, if this one combines two."""
    lesson_ids: tuple[str, ...] = ()
    """Lessons of earlier runs that the model received for it."""
    repeats: int = 0
    """The earlier attempt with identical files; 0: none."""

    @property
    def passed(self) -> frozenset[str]:
        return frozenset(test.id for report in self.reports for test in report.tests if test.passed)

    @property
    def all_passed(self) -> bool:
        return bool(self.reports) and all(report.passed for report in self.reports)

    @property
    def tampered(self) -> bool:
        return any(finding.severity == "forgery" for finding in self.findings)

    @property
    def findings(self) -> tuple[Finding, ...]:
        judged = self.verdict.findings if self.verdict else ()
        return tuple(dict.fromkeys((*self.found, *judged)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state that one step of the graph passes to the next."""

    plan: Plan = field(default_factory=Plan)
    attempts: tuple[Attempt, ...] = ()
    """All completed attempts."""
    round: tuple[Attempt, ...] = ()
    """The attempts in progress: one, or several concurrent ones."""
    numbered: int = 0
    """The highest attempt number so far, including attempts without a result."""
    step: NextAction | None = None
    best: int = 0
    """The number of the best attempt; 0: none is better than the original workspace."""
    test_matrix: TestMatrix = field(default_factory=TestMatrix)
    usage: Usage = field(default_factory=Usage)
    wall_s: float = 0.0
    """Wall time so far, including the time before a resume."""
    actions: int = 0
    """The number of steps so far, which is part of each event's key."""
    ending: RunResult | None = None

    def attempt(self, number: int) -> Attempt | None:
        """Return the attempt with this number, completed or in progress."""
        for attempt in (*self.attempts, *self.round):
            if attempt.number == number:
                return attempt
        return None


STATE: Final = TypeAdapter(RunState)
REPLY: Final = TypeAdapter(Reply)
OBSERVATIONS: Final = TypeAdapter(tuple[Observation, ...])
VERDICT: Final = TypeAdapter(Verdict)
