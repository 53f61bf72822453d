"""What is verified and what is observed.

`VerificationSpec` has the original files and the checks. `CheckSpec` is one check; `Execution`
and `Observation` are what its run shows.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath

from assay.contracts.verdict import CheckReport, Finding, Grade, TamperKind
from assay.contracts.workspace import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationSpec:
    """The input of the verifier in addition to the attempt's files."""

    pristine: Tree
    """The original workspace, including all tests."""
    checks: tuple[str, ...]
    """The check commands, in order; at least one."""
    protected: tuple[PurePosixPath, ...]
    allowed: tuple[str, ...] = ()
    """Globs of files that may change; empty: everything that is not protected."""
    most: Grade = Grade.PROVEN
    """The highest possible grade: checks that the agent wrote prove nothing."""
    check_timeout_s: float = 180.0
    baseline_timeout_s: float = 60.0
    """The time limit for a check on the original files, where it may hang."""
    goal: str = ""
    required: tuple[str, ...] = ()
    """Test files and test IDs that must pass, even if they failed before in the same way."""
    known_failures: tuple[str, ...] | None = None
    """The only tests that may fail as before; None: all that the goal does not need."""
    changed: tuple[PurePosixPath, ...] | None = None
    """The changed files if the original ones are not known; None: compare with `pristine`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec:
    """One check to run."""

    command: str
    """The command as the user wrote it."""
    argv: tuple[str, ...]
    protected: tuple[PurePosixPath, ...] = ()
    """The test files, all of them in the sandbox."""
    canaries: bool = False
    """Whether to plant canaries."""
    timeout_s: float = 180.0
    changed: tuple[PurePosixPath, ...] = ()
    """Changed Python files; a Python runner reports which of them were executed."""
    removed: tuple[PurePosixPath, ...] = ()
    """Deleted or emptied Python files; a Python runner reports modules that replace them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The changed files that a check executed."""

    files: tuple[PurePosixPath, ...]
    elsewhere: tuple[tuple[str, str], ...] = ()
    """Modules with a changed file's name from outside the verified tree, and their files."""
    replaced: tuple[PurePosixPath, ...] = ()
    """Removed or executed files that such a module replaces."""
    has_children: bool = False
    """Whether the tests started other processes, whose imports are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The result of a check, and the runner's own findings."""

    report: CheckReport
    findings: tuple[Finding, ...] = ()
    seen: tuple[Finding, ...] = ()
    """Suspicious operations of workspace code, which count only for changed files."""
    problem: str | None = None
    """Why the check would not pass without its failed tests, empty: nothing else is wrong; None:
    not known."""
    execution: Execution | None = None
    """None if the runner cannot tell, or no Python file was changed."""


def forgery(kind: TamperKind, explanation: str, path: PurePosixPath | None = None) -> Finding:
    """Return a finding that rejects the attempt and accuses it."""
    return Finding(kind=kind, severity="forgery", explanation=explanation, path=path)


def doubt(kind: TamperKind, explanation: str, path: PurePosixPath | None = None) -> Finding:
    """Return a finding that keeps the attempt from the best grade."""
    return Finding(kind=kind, severity="doubt", explanation=explanation, path=path)
