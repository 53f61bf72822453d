"""Suite validation: the tests must accept the reference and reject the stub.

The result depends on the exercise, the commands and the installed programs, so it is cached under a
digest of all three. An exercise that fails validation still runs, because the public rates include
it, but the clean rate excludes it.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
from pydantic import TypeAdapter, ValidationError

from assay.bench.exercise import Exercise, Language
from assay.bench.score import Judge, Judgement
from assay.bench.toolchains.all import TOOLCHAINS, Toolchains
from assay.bench.toolchains.toolchain import Commands

_FORMAT: Final = "1"
"""Increased when a change of the scorer could change a result."""
_NO_TEST: Final = "no test was carried out"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
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


_RESULT: Final = TypeAdapter(GateResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Validates exercises and caches the results."""

    judge: Judge
    kits: Toolchains
    folder: Path
    """The folder of cached results."""
    versions: Mapping[Language, str]

    async def ask(self, exercise: Exercise) -> GateResult:
        """Score the reference and the stub, or return the cached result.

        Raises:
            SandboxUnavailableError: If no sandbox is available.
        """
        commands = self.kits.commands(exercise)
        path = self.folder / f"{self._key(exercise, commands)}.json"
        try:
            return _RESULT.validate_json(await anyio.Path(path).read_bytes())
        except (OSError, ValidationError):
            pass
        toolchain = TOOLCHAINS[exercise.language]
        await toolchain.warm(exercise, self.kits.found[exercise.language], self.judge.backend)
        result = await self._ask(exercise, commands)
        await anyio.to_thread.run_sync(_keep, path, result)
        return result

    async def _ask(self, exercise: Exercise, commands: Commands) -> GateResult:
        prepared = exercise.prepared_for_reference()
        oracle = await self.judge.judge(prepared, commands, exercise.reference)
        provable = not _has_no_tests(oracle)
        stub = await self.judge.judge(exercise, commands, exercise.stub, provable=provable)
        accepted = oracle.passed or (oracle.by_exit_code and not provable)
        return GateResult(
            exercise=exercise.id,
            oracle_accepted=accepted,
            stub_rejected=not stub.passed,
            provable=provable,
            reason="" if accepted else oracle.reason,
            tests=oracle.tests_total,
            oracle_s=oracle.tests_s,
            stub_s=stub.tests_s,
        )

    def _key(self, exercise: Exercise, commands: Commands) -> str:
        parts = (
            _FORMAT,
            exercise.digest,
            commands.bare,
            commands.check,
            self.versions.get(exercise.language, ""),
            json.dumps([self.judge.proof, self.judge.timeout_s]),
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _has_no_tests(oracle: Judgement) -> bool:
    return oracle.by_exit_code and not oracle.tests_total and _NO_TEST in oracle.reason


def _keep(path: Path, result: GateResult) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(_RESULT.dump_json(result))
    partial.replace(path)


async def ask_all(
    gate: Gate, exercises: tuple[Exercise, ...], on_result: Callable[[GateResult], None]
) -> dict[str, GateResult]:
    """Validate many exercises concurrently.

    Raises:
        SandboxUnavailableError: If no sandbox is available.
    """
    answers: dict[str, GateResult] = {}
    # The scorer itself limits concurrent tests.
    waiting = anyio.CapacityLimiter(2 * gate.judge.turns.total_tokens)

    async def ask(exercise: Exercise) -> None:
        async with waiting:
            answers[exercise.id] = await gate.ask(exercise)
        on_result(answers[exercise.id])

    async with anyio.create_task_group() as tasks:
        for exercise in exercises:
            tasks.start_soon(ask, exercise)
    return answers
