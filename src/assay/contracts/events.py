"""The closed list of facts that a run produces. Every view is drawn from them."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from assay.contracts.goal import Goal, RunResult
from assay.contracts.messages import Usage
from assay.contracts.verdict import CheckReport, Finding, TestMatrix, Verdict
from assay.contracts.workspace import FileChange, Withheld

ActionKind = Literal["sample", "hinted", "repair", "fresh", "combine"]
"""`sample`: independent of what was tried. `hinted`: as independent, but told which tests are hard.
`repair`: goes on in the same context. `fresh`: a new context that knows what was tried. `combine`:
two attempts put together, without the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    run: str
    goal: Goal
    model: str
    backend: str
    isolation: str
    workspace: str
    tree: str
    withheld: tuple[Withheld, ...] = ()
    """What the run does not see: ignored by git, or a secret by its name or content."""
    kind: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    run: str
    kind: Literal["run_resumed"] = "run_resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    steps: tuple[str, ...]
    targets: tuple[PurePosixPath, ...]
    """Files that will probably be written."""
    checks: tuple[str, ...]
    """Commands that decide, also those found or written by the agent."""
    lessons: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    """Names of helpers that earlier runs have left behind, tested again just now."""
    baseline: str = ""
    """What people should know of the checks on the untouched files; empty: nothing."""
    kind: Literal["planned"] = "planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksWritten:
    """The agent wrote tests of its own, and they failed on the untouched tree, as they must."""

    paths: tuple[PurePosixPath, ...]
    text: str
    kind: Literal["checks_written"] = "checks_written"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    attempt: int
    move: ActionKind
    kind: Literal["attempt_started"] = "attempt_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of a reply, while it is being written. Not kept: the reply is."""

    attempt: int
    text: str
    kind: Literal["text_arrived"] = "text_arrived"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReplied:
    attempt: int
    """0 while planning."""
    step: int
    text: str
    calls: tuple[str, ...]
    """Names of the tools it asked for, in order."""
    usage: Usage
    kind: Literal["model_replied"] = "model_replied"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDelta:
    """A piece of what a running program prints. Not kept: the result is."""

    attempt: int
    text: str
    kind: Literal["output_arrived"] = "output_arrived"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswered:
    attempt: int
    step: int
    tool: str
    summary: str
    """One line: what was asked."""
    answer: str
    """What the model was told, trimmed."""
    failed: bool
    kind: Literal["tool_answered"] = "tool_answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesChanged:
    attempt: int
    changes: tuple[FileChange, ...]
    """Against the state in which the attempt began."""
    diff: str
    tree: str
    kind: Literal["files_changed"] = "files_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenFinding:
    """Something in the code that a policy names."""

    path: PurePosixPath
    line: int
    rule: str
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    attempt: int
    findings: tuple[ScreenFinding, ...]
    blocked: bool
    kind: Literal["screened"] = "screened"


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """The checks were run where the agent works: quick feedback, no proof."""

    attempt: int
    reports: tuple[CheckReport, ...]
    lattice: TestMatrix
    findings: tuple[Finding, ...] = ()
    kind: Literal["executed"] = "executed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The independent check spoke."""

    attempt: int
    verdict: Verdict
    kind: Literal["verified"] = "verified"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """The attempt lost tests that an earlier one passed; the earlier state stands."""

    attempt: int
    to_attempt: int
    broke: tuple[str, ...]
    kind: Literal["rolled_back"] = "rolled_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflected:
    """What the controller made of the failure, and what comes next."""

    attempt: int
    lesson: str
    next_move: ActionKind | None
    """None: the run ends."""
    kind: Literal["reflected"] = "reflected"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUsed:
    usage: Usage
    attempts: int
    wall_s: float
    share: float
    """Of whichever cap is nearest, from 0 to 1."""
    kind: Literal["budget_used"] = "budget_used"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    outcome: RunResult
    kind: Literal["run_ended"] = "run_ended"


RunEvent = (
    RunStarted
    | RunResumed
    | Planned
    | ChecksWritten
    | AttemptStarted
    | TextDelta
    | ModelReplied
    | OutputDelta
    | ToolAnswered
    | FilesChanged
    | Screened
    | Executed
    | Verified
    | RolledBack
    | Reflected
    | BudgetUsed
    | RunEnded
)

Passing = TextDelta | OutputDelta
"""Events that are shown and not kept."""
