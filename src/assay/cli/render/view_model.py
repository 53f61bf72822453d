"""The state of a run in progress, accumulated from its events for the live view."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, assert_never

from assay.contracts.events import (
    ActionKind,
    AttemptStarted,
    BudgetUsed,
    ChecksWritten,
    Executed,
    FilesChanged,
    ModelReplied,
    OutputDelta,
    Planned,
    Reflected,
    RolledBack,
    RunEnded,
    RunEvent,
    RunResumed,
    RunStarted,
    Screened,
    TextDelta,
    ToolAnswered,
    Verified,
)
from assay.contracts.messages import Usage
from assay.contracts.verdict import CheckReport, TestMatrix

_TAIL: Final = 1 << 16


@dataclass(slots=True)
class RollingText:
    """The end of a text that keeps growing."""

    text: str = ""

    def add(self, piece: str) -> None:
        self.text += piece
        if len(self.text) > 2 * _TAIL:
            self.text = self.text[-_TAIL:]


@dataclass(slots=True, kw_only=True)
class AttemptView:
    """The state of one attempt."""

    move: ActionKind | None = None
    doing: str = "writing code"
    writing: RollingText = field(default_factory=RollingText)
    diff: str = ""
    """The change that the reply made, until the next reply."""
    printed: RollingText = field(default_factory=RollingText)
    replied: bool = False
    """The text is complete: the next piece begins another reply."""
    ran: bool = False
    """The program has ended: the next piece of output belongs to another program."""


@dataclass(slots=True, kw_only=True)
class RunState:
    """The state of a run. Events may come in any order, as in a resumed run."""

    started: RunStarted | None = None
    steps: tuple[str, ...] = ()
    targets: tuple[PurePosixPath, ...] = ()
    written: set[PurePosixPath] = field(default_factory=set[PurePosixPath])
    checks: dict[str, bool | None] = field(default_factory=dict[str, bool | None])
    """Check commands and their results; None before the first result."""
    desks: dict[int, AttemptView] = field(default_factory=dict[int, AttemptView])
    """Attempts in progress; 0 is the planning."""
    left: tuple[int, AttemptView] = field(
        default_factory=lambda: (0, AttemptView(doing="starting"))
    )
    """The attempt that ended last."""
    test_matrix: TestMatrix = field(default_factory=TestMatrix)
    usage: Usage = field(default_factory=Usage)
    share: float = 0.0
    wall_s: float = 0.0
    accepted: bool = False

    @property
    def focus(self) -> tuple[int, AttemptView]:
        """The attempt to show: the first of parallel ones, so that the picture is calm."""
        return next(iter(self.desks.items()), self.left)

    def apply(self, event: RunEvent) -> None:
        """Update the state with one event."""
        match event:
            case RunStarted():
                self.started = event
                self.desks.setdefault(0, AttemptView(doing="planning"))
            case RunResumed():
                pass
            case Planned() | ChecksWritten():
                self._plan(event)
            case AttemptStarted() | TextDelta() | ModelReplied() | OutputDelta():
                self._work(event)
            case ToolAnswered() | FilesChanged() | Screened():
                self._work_on(event)
            case Executed() | Verified() | RolledBack() | Reflected():
                self._judge(event)
            case BudgetUsed():
                self.usage, self.share, self.wall_s = event.usage, event.share, event.wall_s
            case RunEnded(outcome=outcome):
                self.accepted = outcome.accepted
                self.usage, self.wall_s = outcome.usage, outcome.wall_s
                self.test_matrix = outcome.test_matrix
                for attempt in tuple(self.desks):
                    self._leave(attempt)
            case _:
                assert_never(event)

    def _plan(self, event: Planned | ChecksWritten) -> None:
        match event:
            case Planned():
                self.steps, self.targets = event.steps, event.targets
                self.checks = dict.fromkeys(event.checks)
                self.desks.pop(0, None)
            case ChecksWritten():
                self.written.update(event.paths)
            case _:
                assert_never(event)

    def _work(self, event: AttemptStarted | TextDelta | ModelReplied | OutputDelta) -> None:
        match event:
            case AttemptStarted():
                self.desks.pop(0, None)
                self.desks[event.attempt] = AttemptView(move=event.move)
            case TextDelta():
                desk = self._desk(event.attempt)
                if desk.replied:
                    desk.writing, desk.replied = RollingText(), False
                desk.writing.add(event.text)
                desk.diff = ""
            case ModelReplied():
                desk = self._desk(event.attempt)
                # The streamed pieces may belong to an earlier try of the same request.
                desk.writing, desk.replied = RollingText(event.text[-_TAIL:]), True
                self.usage += event.usage
            case OutputDelta():
                desk = self._desk(event.attempt)
                if desk.ran:
                    desk.printed, desk.ran = RollingText(), False
                desk.printed.add(event.text)
            case _:
                assert_never(event)

    def _work_on(self, event: ToolAnswered | FilesChanged | Screened) -> None:
        desk = self._desk(event.attempt)
        match event:
            case ToolAnswered():
                desk.ran = True
            case FilesChanged():
                self.written.update(change.path for change in event.changes)
                desk.doing, desk.diff = "screening", event.diff[:_TAIL]
            case Screened():
                desk.doing = "writing code" if event.blocked else "trying it out"
            case _:
                assert_never(event)

    def _judge(self, event: Executed | Verified | RolledBack | Reflected) -> None:
        match event:
            case Executed():
                desk = self._desk(event.attempt)
                desk.doing, desk.ran = "verifying in a fresh sandbox", True
                self.test_matrix = event.test_matrix
                self._tick(event.reports)
            case Verified():
                self._tick(event.verdict.reports)
                self.accepted = self.accepted or event.verdict.accepted
                self._leave(event.attempt)
            case RolledBack() | Reflected():
                self._leave(event.attempt)
            case _:
                assert_never(event)

    def _tick(self, reports: Sequence[CheckReport]) -> None:
        for report in reports:
            self.checks[report.command] = report.passed

    def _leave(self, attempt: int) -> None:
        if desk := self.desks.pop(attempt, None):
            desk.doing = "deciding what to do next"
            self.left = attempt, desk

    def _desk(self, attempt: int) -> AttemptView:
        return self.desks.setdefault(attempt, AttemptView())
