"""The state of a run between two steps: plain values that go to disk and come back the same."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from pydantic import TypeAdapter

from assay.contracts.events import ActionKind
from assay.contracts.goal import RunResult
from assay.contracts.lessons import Snippet
from assay.contracts.messages import Message, Reply, Usage
from assay.contracts.verdict import CheckReport, Finding, Grade, TestMatrix, Verdict
from assay.verify.runner import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is going to be done, and what decides."""

    steps: tuple[str, ...] = ()
    targets: tuple[PurePosixPath, ...] = ()
    checks: tuple[str, ...] = ()
    protected: tuple[PurePosixPath, ...] = ()
    most: Grade = Grade.PROVEN
    fails_now: str = ""
    """What is wrong with files that are there already, as the checks see it."""
    hangs: bool = False
    """A check did not end on the untouched files."""
    judged_by_model: bool = False
    """There is no check that failed before: what the program prints is judged against the goal."""
    pristine: str = ""
    """Digest of the workspace with every test in it."""
    lessons: tuple[str, ...] = ()
    lesson_ids: tuple[str, ...] = ()
    skills: tuple[Snippet, ...] = ()
    """Helpers of earlier runs whose tests have just passed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAction:
    """What is tried next."""

    move: ActionKind
    temperature: float | None
    base: int = 0
    """The attempt to start from; 0: the untouched workspace."""
    other: int = 0
    """The attempt that it is put together with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One proposal and what came of it."""

    number: int
    move: ActionKind
    tree: str
    context: tuple[Message, ...] = ()
    """The conversation that led to it, for a repair to go on with."""
    complaint: str = ""
    """Why there is nothing to run: no usable reply, or blocked by the screen."""
    reports: tuple[CheckReport, ...] = ()
    signatures: tuple[str, ...] = ()
    """Of its failures."""
    found: tuple[Finding, ...] = ()
    """What was noticed before the independent check."""
    verdict: Verdict | None = None
    base: int = 0
    other: int = 0
    """Of which two attempts it was put together."""
    lesson_ids: tuple[str, ...] = ()
    """Lessons of earlier runs that the model was shown for it."""
    repeats: int = 0
    """The earlier attempt with the very same files, if there is one."""

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
    """Everything that one step of the graph hands to the next."""

    plan: Plan = field(default_factory=Plan)
    attempts: tuple[Attempt, ...] = ()
    """All that were judged."""
    round: tuple[Attempt, ...] = ()
    """Those in the works: one, or several side by side."""
    numbered: int = 0
    """The highest number that an attempt was given, also one of which nothing came."""
    step: NextAction | None = None
    best: int = 0
    """Number of the best attempt; 0: none is better than the untouched workspace."""
    lattice: TestMatrix = field(default_factory=TestMatrix)
    usage: Usage = field(default_factory=Usage)
    wall_s: float = 0.0
    """Used up so far, also in earlier sittings."""
    moves: int = 0
    """Steps of the graph so far: names the events of each."""
    ending: RunResult | None = None

    def attempt(self, number: int) -> Attempt | None:
        """Return the attempt of this number, judged or in the works."""
        for attempt in (*self.attempts, *self.round):
            if attempt.number == number:
                return attempt
        return None


STATE: Final = TypeAdapter(RunState)
REPLY: Final = TypeAdapter(Reply)
OBSERVATIONS: Final = TypeAdapter(tuple[Observation, ...])
VERDICT: Final = TypeAdapter(Verdict)
