"""What a test runner has to offer so that its word can be taken as evidence."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import CheckReport, Finding, Grade
from assay.contracts.workspace import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec:
    """One check to carry out."""

    command: str
    """As the person wrote it."""
    argv: tuple[str, ...]
    protected: tuple[PurePosixPath, ...] = ()
    """The test files, all of them in the sandbox."""
    canaries: bool = False
    """Whether to plant tests that must fail among the others."""
    timeout_s: float = 180.0
    changed: tuple[PurePosixPath, ...] = ()
    """Changed Python files; a Python runner reports which of them were executed."""
    removed: tuple[PurePosixPath, ...] = ()
    """Python files without code now; a Python runner reports modules that take their places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Which of the changed files a check executed."""

    files: tuple[PurePosixPath, ...]
    elsewhere: tuple[tuple[str, str], ...] = ()
    """Modules named like a changed file that came from outside the judged tree, with their file."""
    replaced: tuple[PurePosixPath, ...] = ()
    """Removed or executed files with such a module in their place."""
    has_children: bool = False
    """Other processes were started, and what they import is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What came of a check, and what the runner itself noticed about it."""

    report: CheckReport
    findings: tuple[Finding, ...] = ()
    seen: tuple[Finding, ...] = ()
    """What code of the workspace did meanwhile, which counts only if the proposal brought it."""
    execution: Execution | None = None
    """None if the runner cannot tell, or no Python file was changed."""


class Runner(Protocol):
    """A way of running tests that Assay understands."""

    @property
    def name(self) -> str: ...

    @property
    def most(self) -> Grade:
        """The best grade that its report can support."""
        ...

    @property
    def configuration(self) -> tuple[str, ...]:
        """Globs of files that steer the runner: they come from the goal, never from the agent."""
        ...

    def understands(self, argv: tuple[str, ...]) -> bool:
        """Whether this command is one of this runner's."""
        ...

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        """Test ids that must be in the report, found by reading the files, without parameters.

        A lower bound: tests that are made at run time cannot be read. A report has them if an id
        in it, cut at its parameters, is the same.
        """
        ...

    async def run(
        self,
        order: CheckSpec,
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> Observation:
        """Run the check in a sandbox that holds the files. Canaries are not in the report's tests.

        Raises:
            SandboxUnavailableError: If the sandbox is gone.
        """
        ...
