"""Events of a run: a closed list, from which every view is built."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from assay.contracts.goal import RunResult, RunSpec
from assay.contracts.messages import Usage
from assay.contracts.verdict import CheckReport, Finding, TestMatrix, Verdict
from assay.contracts.workspace import FileChange, Withheld

ActionKind = Literal["sample", "hinted", "repair", "fresh", "combine"]
"""Kinds of attempts. `sample`: independent of earlier attempts. `hinted`: independent, with a list
of the hard tests. `repair`: continues in the same context. `fresh`: a new context with a summary of
earlier attempts. `combine`: merges two attempts, without the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    run: str
    spec: RunSpec
    model: str
    backend: str
    isolation: str
    workspace: str
    tree: str
    withheld: tuple[Withheld, ...] = ()
    """Files that the run does not see: ignored by git, or secret by name or content."""
    kind: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    run: str
    kind: Literal["run_resumed"] = "run_resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    steps: tuple[str, ...]
    targets: tuple[PurePosixPath, ...]
    """Files that the run will probably write."""
    checks: tuple[str, ...]
    """Commands that decide, including those that the agent found or wrote."""
    lessons: tuple[str, ...] = ()
    snippets: tuple[str, ...] = ()
    """Names of stored snippets from earlier runs, tested again for this run."""
    baseline: str = ""
    """Remarks on the results of the checks on the untouched files; empty if there are none."""
    instructions: str = ""
    """The file with the project's instructions that the model receives; empty if there is none."""
    kind: Literal["planned"] = "planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksWritten:
    """The agent wrote tests, and they failed on the untouched tree, as they must."""

    paths: tuple[PurePosixPath, ...]
    text: str
    kind: Literal["checks_written"] = "checks_written"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    attempt: int
    action: ActionKind
    kind: Literal["attempt_started"] = "attempt_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of a reply while the model writes it. Not stored: the whole reply is."""

    attempt: int
    text: str
    kind: Literal["text_delta"] = "text_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReplied:
    attempt: int
    """0 during planning."""
    step: int
    text: str
    calls: tuple[str, ...]
    """Names of the tools that it called, in order."""
    usage: Usage
    cut_off: bool = False
    """Whether the reply reached its limit on tokens."""
    kind: Literal["model_replied"] = "model_replied"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDelta:
    """A piece of a running program's output. Not stored: the result is."""

    attempt: int
    text: str
    kind: Literal["output_delta"] = "output_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswered:
    attempt: int
    step: int
    tool: str
    summary: str
    """One line that describes the call."""
    answer: str
    """The answer that the model received, truncated."""
    failed: bool
    kind: Literal["tool_answered"] = "tool_answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesChanged:
    attempt: int
    changes: tuple[FileChange, ...]
    """Changes since the start of the attempt."""
    diff: str
    tree: str
    kind: Literal["files_changed"] = "files_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenFinding:
    """A policy violation in the code."""

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
    """The checks ran in the agent's sandbox: quick feedback, not evidence."""

    attempt: int
    reports: tuple[CheckReport, ...]
    test_matrix: TestMatrix
    findings: tuple[Finding, ...] = ()
    kind: Literal["executed"] = "executed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The independent check gave its verdict."""

    attempt: int
    verdict: Verdict
    kind: Literal["verified"] = "verified"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """The attempt failed tests that an earlier one passed; the earlier state stays."""

    attempt: int
    to_attempt: int
    broke: tuple[str, ...]
    kind: Literal["rolled_back"] = "rolled_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflected:
    """The controller's analysis of the failure, and the next action."""

    attempt: int
    lesson: str
    next_action: ActionKind | None
    """None if the run ends."""
    kind: Literal["reflected"] = "reflected"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUsed:
    usage: Usage
    attempts: int
    wall_s: float
    share: float
    """Used share of the nearest cap, from 0 to 1."""
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
"""Events that are shown but not stored."""
