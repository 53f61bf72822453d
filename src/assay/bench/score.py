"""Scoring and suite validation.

The bare command runs first in a fresh sandbox: the public leaderboard uses its exit code, and a
second try receives its whole output. A passing solution then goes to Assay's verifier, which trusts
no exit code. Both results are stored.

A suite is valid if its tests accept the reference and reject the stub. An exercise that fails
validation still runs, because the public rates include it, but the clean rate excludes it.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio
from pydantic import TypeAdapter, ValidationError

from assay.bench.exercise import TEST_TIMEOUT_S, Exercise
from assay.bench.store import Try, write_whole
from assay.bench.toolchains.all import Toolchains
from assay.bench.toolchains.toolchain import Commands
from assay.contracts.execution import Command, Limits, OutputChunk, Reason
from assay.contracts.ports import SandboxBackend
from assay.contracts.workspace import Tree
from assay.sandbox.tree_io import open_tree
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
"""How the verifier rejects a solution that no test checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """Scores proposals, as many concurrently as the machine allows."""

    backend: SandboxBackend
    limits: Limits
    turns: anyio.CapacityLimiter
    """Concurrent test suites: with more than processors, timeouts become wrong."""
    timeout_s: float = TEST_TIMEOUT_S
    proof: bool = True
    """Whether passing solutions go to the verifier."""

    async def score(
        self, exercise: Exercise, commands: Commands, proposal: Tree, *, provable: bool = True
    ) -> Try:
        """Score a solution; files outside of the writable ones do not count.

        Args:
            exercise: The exercise to solve.
            commands: The commands for its tests.
            proposal: The files of the solution.
            provable: False for an exercise without tests: its exit code decides.

        Raises:
            SandboxUnavailableError: If no sandbox is available.
        """
        limits = replace(
            self.limits,
            wall_s=self.timeout_s,
            cpu_s=2 * self.timeout_s,
            output_bytes=max(self.limits.output_bytes, _MOST_OUTPUT),
        )
        async with self.turns:
            bare = await self._run_bare(exercise, commands, proposal, limits)
            if not bare.by_exit_code or not self.proof:
                return bare
            spec = VerificationSpec(
                pristine=exercise.pristine,
                checks=(commands.check,),
                protected=tuple(exercise.tests.files),
                allowed=exercise.writable,
                check_timeout_s=self.timeout_s,
            )
            whole = exercise.pristine.with_files(proposal.files)
            verdict = await Verifier(self.backend, limits).verify(spec, whole)
        tests = verdict.tests
        untested = not tests and not verdict.tampered and _NO_TEST in verdict.reason
        return replace(
            bare,
            passed=verdict.accepted or (untested and not provable),
            proven=verdict.accepted,
            reason=verdict.reason,
            tampered=verdict.tampered,
            tests_passed=sum(test.passed for test in tests),
            tests_total=len(tests),
        )

    async def _run_bare(
        self, exercise: Exercise, commands: Commands, proposal: Tree, limits: Limits
    ) -> Try:
        kept = bytearray()

        def keep(chunk: OutputChunk) -> None:
            if len(kept) < _MOST_OUTPUT:
                kept.extend(chunk.data)

        counted = {
            path: file for path, file in proposal.files.items() if matches(path, exercise.writable)
        }
        tree = exercise.workspace.with_files(counted).with_files(exercise.tests.files)
        async with open_tree(self.backend, limits, tree) as sandbox:
            argv = ("bash", "-c", commands.bare)
            program = Command(argv=argv, cwd=exercise.folder, timeout_s=self.timeout_s)
            result = await sandbox.run(program, on_output=keep)
        output = TIMED_OUT
        if not result.timed_out:
            # Without text that differs between runs, as in the original harness.
            text = _DURATION.sub("", kept.decode("utf-8", "replace"))
            output = text.replace("/app", exercise.folder.name or exercise.id.rpartition("/")[2])
        ending = "" if result.reason is Reason.COMPLETED else f", {result.reason.value}"
        lines = output.splitlines()
        failure = f"the tests failed{ending}: {telling_line(output)}"
        return Try(
            passed=result.succeeded,
            by_exit_code=result.succeeded,
            proven=False,
            reason="" if result.succeeded else failure,
            output=output,
            timed_out=result.timed_out,
            tests_s=result.duration_s,
            cpu_s=result.cpu_s,
            syntax_errors=sum(line.startswith("SyntaxError") for line in lines),
            indentation_errors=sum(line.startswith("IndentationError") for line in lines),
        )


def telling_line(output: str) -> str:
    """Return the line of test output that best explains the failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = next((line for line in lines if _TELLING.match(line)), lines[-1] if lines else "")
    return telling[:_MOST_LINE] or "nothing was printed"


_FORMAT: Final = "1"
"""Increased when a change of the scorer could change a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """The validation result of one exercise on this machine."""

    exercise: str
    oracle_accepted: bool
    stub_rejected: bool
    provable: bool = True
    """False if the exercise has no tests: only its exit code exists."""
    reason: str = ""
    """Why the oracle was rejected."""
    tests: int = 0
    oracle_s: float = 0.0
    stub_s: float = 0.0

    @property
    def clean(self) -> bool:
        return self.oracle_accepted and self.stub_rejected


_RESULT: Final = TypeAdapter(ValidationResult)


async def validate_exercise(
    exercise: Exercise, scorer: Scorer, toolchains: Toolchains, *, version: str, folder: Path
) -> ValidationResult:
    """Score the reference and the stub, or return the cached result.

    The result depends on the exercise, the commands and the installed programs, so it is cached
    in the folder under a digest of all three.

    Raises:
        SandboxUnavailableError: If no sandbox is available.
    """
    commands = toolchains.commands(exercise)
    settings = json.dumps([scorer.proof, scorer.timeout_s])
    parts = (_FORMAT, exercise.digest, commands.bare, commands.check, version, settings)
    path = folder / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.json"
    try:
        return _RESULT.validate_json(await anyio.Path(path).read_bytes())
    except (OSError, ValidationError):
        pass
    await toolchains.warm(exercise, scorer.backend)
    prepared = exercise.prepared_for_reference()
    oracle = await scorer.score(prepared, commands, exercise.reference)
    untested = oracle.by_exit_code and not oracle.tests_total and _NO_TEST in oracle.reason
    stub = await scorer.score(exercise, commands, exercise.stub, provable=not untested)
    accepted = oracle.passed or untested
    result = ValidationResult(
        exercise=exercise.id,
        oracle_accepted=accepted,
        stub_rejected=not stub.passed,
        provable=not untested,
        reason="" if accepted else oracle.reason,
        tests=oracle.tests_total,
        oracle_s=oracle.tests_s,
        stub_s=stub.tests_s,
    )
    await anyio.to_thread.run_sync(write_whole, path, _RESULT.dump_json(result))
    return result
