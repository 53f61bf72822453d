"""Score of an exercise: its tests as in the original harness, then the independent check.

The bare command runs first in a fresh sandbox: the public leaderboard uses its exit code, and a
second try receives its whole output. A passing solution then goes to Assay's verifier, which trusts
no exit code. Both results are stored.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

import anyio

from assay.bench.exercise import TEST_TIMEOUT_S, Exercise
from assay.bench.toolchains.toolchain import Commands
from assay.contracts.execution import Command, Limits, OutputChunk, Reason
from assay.contracts.ports import SandboxBackend
from assay.contracts.verdict import Verdict
from assay.contracts.workspace import Tree
from assay.sandbox.tree_io import write_tree
from assay.text.globs import matches
from assay.verify.spec import VerificationSpec
from assay.verify.verifier import Verifier

TIMED_OUT: Final = "Tests timed out!"
_DURATION: Final = re.compile(r"\bin \d+\.\d+s\b")
_TELLING: Final = re.compile(
    # pytest, rustc, javac and g++, jest, go, libtest, Catch
    r"E +\S|error(\[|:)|\S+\.(java|cpp|h|go):\d+.*(error|undefined|:)|●|panic: |thread '.*panicked"
    r"|\S+:\d+: FAILED:|(Syntax|Indentation|Type|Reference|Name)Error\b|--- FAIL"
)
_MOST_LINE: Final = 160
_MOST_OUTPUT: Final = 4 << 20
_NO_TEST: Final = "no test was carried out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The score of one proposal."""

    passed: bool
    by_exit_code: bool
    """The result of the original harness."""
    proven: bool
    """Whether the verifier accepted it."""
    reason: str
    output: str
    """The output of the tests, both streams in the order of arrival."""
    timed_out: bool = False
    tampered: bool = False
    tests_passed: int = 0
    tests_total: int = 0
    """Both as far as the verifier ran."""
    tests_s: float = 0.0
    """Wall time of the bare run."""
    cpu_s: float = 0.0
    """Its processor time: a timeout with little of it indicates a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Scores proposals, as many concurrently as the machine allows."""

    backend: SandboxBackend
    limits: Limits
    turns: anyio.CapacityLimiter
    """Concurrent test suites: with more than processors, timeouts become wrong."""
    timeout_s: float = TEST_TIMEOUT_S
    proof: bool = True
    """Whether passing solutions go to the verifier."""

    async def judge(
        self, exercise: Exercise, commands: Commands, proposal: Tree, *, provable: bool = True
    ) -> Judgement:
        """Score a solution; files outside of the writable ones do not count.

        Args:
            exercise: The exercise to solve.
            commands: The commands for its tests.
            proposal: The files of the solution.
            provable: False for an exercise without tests: its exit code decides.

        Raises:
            SandboxUnavailableError: If no sandbox is available.
        """
        async with self.turns:
            bare = await self._run_bare(exercise, commands, proposal)
            if not bare.by_exit_code or not self.proof:
                return bare
            verdict = await self._verify(exercise, commands, proposal)
        return _weighed(bare, verdict, provable=provable)

    async def _run_bare(self, exercise: Exercise, commands: Commands, proposal: Tree) -> Judgement:
        kept = bytearray()

        def keep(chunk: OutputChunk) -> None:
            if len(kept) < _MOST_OUTPUT:
                kept.extend(chunk.data)

        counted = {
            path: file for path, file in proposal.files.items() if matches(path, exercise.writable)
        }
        tree = exercise.workspace.with_files(counted).with_files(exercise.tests.files)
        async with self.backend.open_sandbox(self._limits) as sandbox:
            await write_tree(sandbox, tree)
            program = Command(
                argv=("bash", "-c", commands.bare),
                cwd=exercise.folder,
                timeout_s=self.timeout_s,
            )
            result = await sandbox.run(program, on_output=keep)
        output = TIMED_OUT if result.timed_out else _cleaned(bytes(kept), exercise)
        ending = "" if result.reason is Reason.COMPLETED else f", {result.reason.value}"
        telling = telling_line(output)
        return Judgement(
            passed=result.succeeded,
            by_exit_code=result.succeeded,
            proven=False,
            reason="" if result.succeeded else f"the tests failed{ending}: {telling}",
            output=output,
            timed_out=result.timed_out,
            tests_s=result.duration_s,
            cpu_s=result.cpu_s,
        )

    @property
    def _limits(self) -> Limits:
        return replace(
            self.limits,
            wall_s=self.timeout_s,
            cpu_s=2 * self.timeout_s,
            output_bytes=max(self.limits.output_bytes, _MOST_OUTPUT),
        )

    async def _verify(self, exercise: Exercise, commands: Commands, proposal: Tree) -> Verdict:
        case = VerificationSpec(
            pristine=exercise.pristine,
            checks=(commands.check,),
            protected=tuple(exercise.tests.files),
            allowed=exercise.writable,
            check_timeout_s=self.timeout_s,
        )
        whole = exercise.pristine.with_files(proposal.files)
        return await Verifier(self.backend, self._limits).verify(case, whole)


def _weighed(bare: Judgement, verdict: Verdict, *, provable: bool) -> Judgement:
    tests = verdict.tests
    excused = not provable and not tests and not verdict.tampered and _NO_TEST in verdict.reason
    return replace(
        bare,
        passed=verdict.accepted or excused,
        proven=verdict.accepted,
        reason=verdict.reason,
        tampered=verdict.tampered,
        tests_passed=sum(test.passed for test in tests),
        tests_total=len(tests),
    )


def telling_line(output: str) -> str:
    """Return the line of test output that best explains the failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = next((line for line in lines if _TELLING.match(line)), lines[-1] if lines else "")
    return telling[:_MOST_LINE] or "nothing was printed"


def _cleaned(output: bytes, exercise: Exercise) -> str:
    """Remove text that differs between runs, as the original harness does."""
    text = _DURATION.sub("", output.decode("utf-8", "replace"))
    return text.replace("/app", exercise.folder.name or exercise.id.rpartition("/")[2])
