"""The template of a test runner: plant canaries, run programs in a sandbox, check their reports.

Canaries are tests that must fail. They are in the same files or packages as the user's tests, so
that tampering with those affects both. Afterwards the files are restored, and changes to them in
between are reported.
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import ClassVar, Final, NamedTuple

import anyio

from assay.contracts.errors import SandboxUnavailableError, WorkspaceError
from assay.contracts.execution import Command, ExecutionResult
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import Finding, Grade, TamperKind
from assay.contracts.workspace import Tree
from assay.verify.parse_command import Invocation, read_invocation
from assay.verify.report_checks import RawReport, ReportCapture, check_reports
from assay.verify.spec import CheckSpec, Observation, doubt, forgery

_CLEAN_UP_S: Final = 10
_SMALLEST_TIMEOUT_S: Final = 0.1
_WORDS: Final = (
    "accepts", "answers", "builds", "counts", "finds", "gives", "handles", "keeps", "leaves",
    "makes", "orders", "reads", "refuses", "returns", "sorts", "splits", "takes", "writes",
)  # fmt: skip


class Planted(NamedTuple):
    """A file with canaries."""

    content: bytes
    names: frozenset[str]
    """Unpredictable names that are part of the canaries' test IDs."""


Canaries = Mapping[PurePosixPath, Planted]


def new_canary_name() -> str:
    """Return a name for a canary that cannot be guessed and resembles no other."""
    # No common prefix: code could treat recognizable names as an exception.
    return f"{secrets.choice(_WORDS)}_{secrets.token_hex(6)}"


def plant(
    text: str,
    template: str,
    failures: Iterable[str],
    *,
    end: str = "",
    rename: Callable[[str], str] = str,
) -> Planted:
    """Append a canary for each different piece of code that must fail.

    `template` is the source of one test, with the placeholders `{name}` and `{act}`. `rename` turns
    a new name into one that the test framework accepts.
    """
    own = {rename(new_canary_name()): failure for failure in dict.fromkeys(failures)}
    tests = "".join(template.format(name=name, act=act) for name, act in own.items())
    return Planted(f"{text}{tests}{end}".encode(), frozenset(own))


def names_of(canaries: Canaries) -> frozenset[str]:
    """Return the names of all canaries."""
    return frozenset(name for planted in canaries.values() for name in planted.names)


@dataclass(slots=True, kw_only=True)
class CheckRun:
    """One run of a check in a sandbox. Its programs share the time of the check."""

    check: CheckSpec
    sandbox: Sandbox
    on_output: OnOutput
    call: Invocation
    cwd: PurePosixPath
    left_s: float
    texts: Mapping[PurePosixPath, str] = field(default_factory=dict[PurePosixPath, str])
    """The test files without canaries, if the runner reads them."""
    canaries: Canaries = field(default_factory=dict[PurePosixPath, Planted])

    async def start(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        cwd: PurePosixPath | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run a program of the check in its folder, with the variables of its command."""
        result = await self.sandbox.run(
            Command(
                argv=argv,
                env={**(env or {}), **self.call.env},
                cwd=self.cwd if cwd is None else cwd,
                timeout_s=max(self.left_s, _SMALLEST_TIMEOUT_S),
            ),
            on_output=on_output or self.on_output,
        )
        self.left_s -= result.duration_s
        return result

    async def output_of(self, *argv: str) -> bytes:
        """Return what a short command prints; it does not use the time of the check."""
        capture = ReportCapture("stdout", ignore_output)
        await self.sandbox.run(Command(argv=argv), on_output=capture)
        return capture.content


class Runner(ABC):
    """A test framework that Assay supports.

    A subclass says which commands it understands, how it runs one, and how its report is read.
    `run` does the rest in the same way for all. Other distributions add runners through the entry
    point group `assay.runners`.
    """

    name: ClassVar[str]
    most: ClassVar[Grade] = Grade.PROVEN
    """The best grade that the runner's report can support."""
    configuration: ClassVar[tuple[str, ...]] = ()
    """Globs of configuration files: they come from the goal, never from the agent."""
    needs_texts: ClassVar[bool] = False
    """Whether a run without canaries reads the test files too."""

    @abstractmethod
    def understands(self, argv: tuple[str, ...]) -> bool:
        """Whether this command belongs to this runner."""

    def expected(self, check: CheckSpec, tree: Tree) -> frozenset[str]:
        """Return the test IDs that the report must have, without parameters.

        They are found by reading the files, so tests that are created at run time are not included.
        A report has one of them if it has this ID with any parameters.
        """
        del check, tree
        return frozenset()

    def test_files(self, check: CheckSpec) -> tuple[PurePosixPath, ...]:
        """Return the protected files that the command runs, as far as this is known."""
        del check
        return ()

    def plan_canaries(self, check: CheckSpec, texts: Mapping[PurePosixPath, str]) -> Canaries:
        """Return complete files with canaries; `texts` are the test files."""
        del check, texts
        return {}

    async def execute(self, run: CheckRun) -> Sequence[RawReport]:
        """Run the programs of the check while the canaries are in place; one report for each.

        Raises:
            SandboxUnavailableError: If the sandbox is gone.
        """
        raise NotImplementedError

    async def run(
        self, check: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        """Run the check in a sandbox that has the files. The returned report excludes canaries.

        Raises:
            SandboxUnavailableError: If the sandbox is gone.
        """
        call = read_invocation(check.argv)
        run = CheckRun(
            check=check,
            sandbox=sandbox,
            on_output=on_output,
            call=call,
            cwd=call.cwd,
            left_s=check.timeout_s,
        )
        if check.canaries or self.needs_texts:
            run.texts = await _read_texts(sandbox, self.test_files(check))
        if check.canaries:
            run.canaries = self.plan_canaries(check, run.texts)
        async with planted(sandbox, run.canaries, originals=run.texts) as findings:
            reports = await self.execute(run)
        observation = check_reports(check, self.name, reports, findings)
        report = observation.report
        if not (check.canaries and report.passed and self.most is Grade.PROVEN):
            return observation
        if report.canaries_planted:
            return observation
        # A forgery would not show in this run.
        said = "no test that must fail could be planted, so forging would not be seen"
        found = (*observation.findings, doubt(TamperKind.PATCHED_RUNNER, said))
        return replace(observation, findings=found)


async def _read_texts(
    sandbox: Sandbox, paths: tuple[PurePosixPath, ...]
) -> dict[PurePosixPath, str]:
    """Return the existing text files among these paths."""
    texts: dict[PurePosixPath, str] = {}
    for path in paths:
        try:
            texts[path] = (await sandbox.read_file(path)).decode()
        except (WorkspaceError, UnicodeDecodeError):
            continue
    return texts


@asynccontextmanager
async def planted(
    sandbox: Sandbox, canaries: Canaries, *, originals: Mapping[PurePosixPath, str]
) -> AsyncGenerator[list[Finding]]:
    """Keep these files in place inside the context. On exit, the list receives the findings.

    Raises:
        SandboxUnavailableError: If the sandbox is gone.
    """
    findings: list[Finding] = []
    try:
        for path, (content, _) in canaries.items():
            await sandbox.write_file(path, content)
        yield findings
    finally:
        with anyio.move_on_after(_CLEAN_UP_S, shield=True):
            for path, (content, _) in canaries.items():
                if await _restore(sandbox, path, originals.get(path)) != content:
                    said = f"{path} was rewritten while its tests ran"
                    findings.append(forgery(TamperKind.CHANGED_WHILE_TESTED, said, path))


async def _restore(sandbox: Sandbox, path: PurePosixPath, original: str | None) -> bytes | None:
    """Restore a file; returns its content before that, or None if it was not there."""
    found: bytes | None = None
    try:
        with suppress(WorkspaceError):
            found = await sandbox.read_file(path)
        if original is not None:
            await sandbox.write_file(path, original.encode())
        elif found is not None:
            await sandbox.remove_path(path)
    except (WorkspaceError, SandboxUnavailableError):
        return None
    return found
