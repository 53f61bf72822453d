"""What a person asks for, how it is decided, and what came of it."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Literal

from assay.contracts.errors import UsageError
from assay.contracts.messages import Usage
from assay.contracts.verdict import Finding, Grade, TestMatrix, Verdict
from assay.contracts.workspace import FileChange, Withheld


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceCriteria:
    """How it is decided that a goal is met. The model has no say in it."""

    checks: tuple[str, ...] = ()
    """Commands as a person types them. Understood test runners are run by their own reports,
    anything else by its exit code. Empty: test files decide, or checks the agent writes first."""
    protected: tuple[PurePosixPath, ...] = ()
    """Test files and what they need: the agent reads them, and changes nothing in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """How much a run may try. Money and tokens are the meter's business.

    Raises:
        UsageError: If a number is not positive.
    """

    attempts: int = 8
    repairs: int = 2
    """In one context, before a fresh one is begun."""
    steps: int = 40
    """Replies of the model within one attempt."""
    wall_s: float = 1800.0
    check_s: float = 180.0
    """For one check."""
    baseline_s: float = 60.0
    """For one check on the untouched files, before the first call to a model; 0: not run there."""
    best_of: int = 1
    """Attempts made side by side each time, of which the best is kept."""

    def __post_init__(self) -> None:
        for name in ("attempts", "steps", "wall_s", "check_s", "best_of"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name} must be a positive number, not {getattr(self, name)!r}")
        if not 0 <= self.baseline_s < float("inf"):
            raise UsageError(f"baseline_s must be 0 or positive, not {self.baseline_s!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is wanted, by what it is judged, and what may be changed for it."""

    statement: str
    acceptance: AcceptanceCriteria = field(default_factory=AcceptanceCriteria)
    allowed: tuple[str, ...] = ()
    """Globs of paths the agent may change; empty: everything that is not protected."""
    effort: RunLimits = field(default_factory=RunLimits)

    def __post_init__(self) -> None:
        if not self.statement.strip():
            raise UsageError("the goal is empty", hint="say in a sentence what you want")


class Status(StrEnum):
    """How a run ended."""

    ACCEPTED = "accepted"
    NOT_ACCEPTED = "not_accepted"
    OUT_OF_BUDGET = "out_of_budget"
    """Money, tokens, calls or time were used up first."""
    TAMPERED = "tampered"
    """Not accepted, and the best that was offered tried to forge its proof."""
    INTERRUPTED = "interrupted"
    """Stopped by the person; it can be resumed."""
    FAILED = "failed"
    """A part of Assay, not the work, ended it: no model, no sandbox. It can be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run comes back with."""

    run: str
    status: Status
    grade: Grade | None
    """None unless accepted."""
    reason: str
    """One line for a person."""
    attempts: int
    verdict: Verdict | None
    """Of the state that is handed over or kept as the best."""
    lattice: TestMatrix
    findings: tuple[Finding, ...]
    """Of all attempts."""
    changes: tuple[FileChange, ...]
    """From the untouched workspace to the state of `tree`."""
    tree: str
    """Digest of the accepted state, otherwise of the best one."""
    usage: Usage
    wall_s: float
    certificate: str = ""
    """Where it was written; empty unless accepted."""
    withheld: tuple[Withheld, ...] = ()
    """What the run did not see of the workspace."""

    @property
    def accepted(self) -> bool:
        return self.status is Status.ACCEPTED


MemoryUse = Literal["off", "plan", "action", "all"]
"""At which moments lessons of earlier failures are recalled."""
