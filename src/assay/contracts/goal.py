"""Runs: what the user asks for, its resolved form, limits and results."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Literal

from assay.contracts.errors import UsageError
from assay.contracts.messages import Usage
from assay.contracts.verdict import Finding, Grade, TestMatrix, Verdict
from assay.contracts.workspace import FileChange, Withheld


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Limits on attempts and time of a run. The budget caps money and tokens separately.

    Raises:
        UsageError: If a number is not positive.
    """

    attempts: int = 8
    repairs: int = 2
    """Repairs in one context, before Assay starts a fresh one."""
    steps: int = 40
    """Replies of the model within one attempt."""
    wall_s: float = 1800.0
    check_timeout_s: float = 180.0
    """For one check."""
    baseline_timeout_s: float = 60.0
    """For one check on the untouched files, before the first call to a model; 0: not run there."""
    best_of: int = 1
    """Parallel attempts each time, of which Assay keeps the best."""

    def __post_init__(self) -> None:
        for name in ("attempts", "steps", "wall_s", "check_timeout_s", "best_of"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name} must be a positive number, not {getattr(self, name)!r}")
        if not 0 <= self.baseline_timeout_s < float("inf"):
            raise UsageError(
                f"baseline_timeout_s must be 0 or positive, not {self.baseline_timeout_s!r}"
            )


MemoryUse = Literal["off", "plan", "action", "all"]
"""Moments at which Assay recalls lessons of earlier failures."""
Policy = Literal["off", "warn", "block"]
"""The action for generated code that screening flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A goal with all its options, as the user gave them; it is stored, so that runs can resume.

    Raises:
        UsageError: If the goal is empty.
    """

    goal: str
    workspace: Path | None = None
    """None: a new folder, named after the run."""
    parent: Path = field(default_factory=Path.cwd)
    """The parent of that new folder."""
    checks: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    """Files, folders or pytest node IDs in the workspace; a stored request lists each file."""
    allowed: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Globs of files that the run ignores: it does not read, show or change them."""
    include: tuple[str, ...] = ()
    """Files or folders to read although git ignores them or they look like secrets."""
    model: str = "auto"
    limits: RunLimits = field(default_factory=RunLimits)
    attempts_left_open: bool = False
    """Whether the user left the number open: a local model then gets more attempts."""
    screening: Policy = "warn"
    memory: MemoryUse = "all"
    budget_usd: float | None = None
    budget_tokens: int | None = None
    budget_calls: int | None = None
    packages: tuple[str, ...] = ()
    """Python packages for the sandboxes."""
    env: str = "off"
    """The project's environment: `auto`, `off`, or the path of a virtual environment."""
    hosts: tuple[str, ...] = ()
    """Hosts that the sandboxes may reach."""
    commit: bool = False
    """Whether an accepted change is committed."""
    branch: str = ""
    """The new branch for that commit; the folder is not changed then. Empty: the current one."""

    def __post_init__(self) -> None:
        if not self.goal.strip():
            raise UsageError("the goal is empty", hint="say in a sentence what you want")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """A resolved request: the goal, what decides about it, and the limits."""

    goal: str
    checks: tuple[str, ...] = ()
    """Shell commands. Known test runners are checked by their own reports, other commands by their
    exit code. Empty: test files decide, or checks that the agent writes first."""
    protected: tuple[PurePosixPath, ...] = ()
    """Test files and what they need: the agent can read them, but not change them."""
    required: tuple[str, ...] = ()
    """Test files and pytest node IDs that the user named: they must pass."""
    allowed: tuple[str, ...] = ()
    """Globs of paths that the agent may change; empty: everything that is not protected."""
    limits: RunLimits = field(default_factory=RunLimits)


class Status(StrEnum):
    """Final status of a run."""

    ACCEPTED = "accepted"
    NOT_ACCEPTED = "not_accepted"
    OUT_OF_BUDGET = "out_of_budget"
    """Money, tokens, calls or time were used up first."""
    TAMPERED = "tampered"
    """Not accepted, and the best attempt contained a forgery."""
    INTERRUPTED = "interrupted"
    """The user stopped the run; it can be resumed."""
    FAILED = "failed"
    """A component of Assay failed: no model, no sandbox. The run can be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run."""

    run: str
    status: Status
    grade: Grade | None
    """None unless accepted."""
    reason: str
    """One line for the user."""
    attempts: int
    verdict: Verdict | None
    """Of the state that is delivered, or of the best state."""
    test_matrix: TestMatrix
    findings: tuple[Finding, ...]
    """Of all attempts."""
    changes: tuple[FileChange, ...]
    """From the untouched workspace to the state of `tree`."""
    tree: str
    """Digest of the accepted state, otherwise of the best one."""
    usage: Usage
    wall_s: float
    certificate: str = ""
    """Path of the certificate; empty unless accepted."""
    commit: str = ""
    """ID of the commit with the accepted change; empty if there is none."""
    withheld: tuple[Withheld, ...] = ()
    """Parts of the workspace that the run did not see."""
    diff: str = ""
    """All changes as a unified diff. This field and the next two are empty in events."""
    folder: str = ""
    """The folder with the run's stored data."""
    local: bool = False
    """Whether the model ran on this machine."""

    @property
    def accepted(self) -> bool:
        return self.status is Status.ACCEPTED
