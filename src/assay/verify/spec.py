"""The specification of a verification, and the protocol of a test runner.

`VerificationSpec` has the original files and the checks. `CheckSpec` is one check, `Execution`
and `Observation` are what its run shows, and `Runner` is a test runner whose report can serve as
evidence.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import CheckReport, Finding, Grade
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
    execution: Execution | None = None
    """None if the runner cannot tell, or no Python file was changed."""


class Runner(Protocol):
    """A test framework that Assay supports."""

    @property
    def name(self) -> str: ...

    @property
    def most(self) -> Grade:
        """The best grade that the runner's report can support."""
        ...

    @property
    def configuration(self) -> tuple[str, ...]:
        """Globs of configuration files: they come from the goal, never from the agent."""
        ...

    def understands(self, argv: tuple[str, ...]) -> bool:
        """Whether this command belongs to this runner."""
        ...

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        """Return the test IDs that the report must have, without parameters.

        They are found by reading the files, so tests that are created at run time are not included.
        A report has one of them if it has this ID with any parameters.
        """
        ...

    async def run(
        self,
        order: CheckSpec,
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> Observation:
        """Run the check in a sandbox that has the files. The returned report excludes canaries.

        Raises:
            SandboxUnavailableError: If the sandbox is gone.
        """
        ...
