"""Runs the exercises concurrently, each in separate sandboxes, with resume."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import anyio

from assay.bench.agent_track import AgentSitting
from assay.bench.exercise import Exercise, Track
from assay.bench.result import Result, Status, Try
from assay.bench.score import Judge, Judgement
from assay.bench.single_shot import Account, BlindSitting
from assay.bench.solvers import Solver
from assay.bench.store import ResultStore, is_final
from assay.bench.toolchains.all import Toolchains
from assay.bench.validate import GateResult
from assay.contracts.errors import (
    JournalError,
    ModelRefusedError,
    ModelUnavailableError,
    SandboxUnavailableError,
)
from assay.contracts.goal import RunLimits
from assay.settings.load import Settings

_RETRIES: Final = 2
"""Restarts of an exercise after a failure that is not the model's."""
_PAUSE_S: Final = 2.0
_OURS: Final = (SandboxUnavailableError, ModelUnavailableError, JournalError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One repetition of one exercise."""

    exercise: Exercise
    repeat: int

    @property
    def key(self) -> str:
        return f"{self.exercise.id}#{self.repeat}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of this run for all exercises."""

    track: Track
    tries: int
    effort: RunLimits
    jobs: int
    """Concurrent exercises."""


OnResult = Callable[[Result], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """All components of a run."""

    rules: Rules
    store: ResultStore
    player: Solver
    judge: Judge
    kits: Toolchains
    gate: Mapping[str, GateResult]
    settings: Settings
    on_start: Callable[[Task], None] = lambda _: None
    on_result: OnResult = lambda _: None
    pause_s: float = _PAUSE_S

    async def run(self, tasks: tuple[Task, ...]) -> None:
        """Run the remaining exercises.

        Raises:
            BudgetExceededError: If a cap on the whole run is reached; completed results are stored.
            JournalError: If a result cannot be written.
        """
        done = self.store.read()
        left = [task for task in tasks if task.key not in done or not is_final(done[task.key])]
        room = anyio.CapacityLimiter(self.rules.jobs)

        async def work(task: Task) -> None:
            async with room:
                self.on_start(task)
                result = await self._do(task)
                await self.store.append(result)
            self.on_result(result)

        async with anyio.create_task_group() as group:
            for task in left:
                group.start_soon(work, task)

    async def _do(self, task: Task) -> Result:
        why_not = self.kits.why_not(task.exercise)
        blank = _blank(task, self.rules.track)
        if why_not:
            return replace(blank, status=Status.NOT_RUN, reason=why_not)
        begun = time.monotonic()
        retries = 0
        while True:
            try:
                result = _concluded(blank, await self._carry_out(task))
            except ModelRefusedError as error:
                result = replace(blank, status=Status.REFUSED, reason=str(error))
            except _OURS as error:
                result = replace(blank, status=Status.INFRASTRUCTURE, reason=_told(error))
            if result.status is not Status.INFRASTRUCTURE or retries == _RETRIES:
                return replace(result, retries=retries, wall_s=time.monotonic() - begun)
            retries += 1
            await anyio.sleep(self.pause_s * retries)

    async def _carry_out(self, task: Task) -> Account:
        exercise, rules = task.exercise, self.rules
        commands = self.kits.commands(exercise)
        answer = self.gate.get(exercise.id)
        provable = answer.provable if answer else True
        replies = self.store.replies_of(exercise, task.repeat)
        async with self.player(exercise, replies) as model:
            if rules.track == "blind":
                sitting = BlindSitting(
                    exercise=exercise,
                    commands=commands,
                    model=model,
                    judge=self.judge,
                    provable=provable,
                    tries=rules.tries,
                )
                return await sitting.carry_out()
            agent = AgentSitting(
                exercise=exercise,
                commands=commands,
                model=model,
                backend=self.judge.backend,
                judge=self.judge,
                settings=self.settings,
                effort=rules.effort,
                place=self.store.work_of(exercise, task.repeat),
                provable=provable,
            )
            if rules.track == "agentic":
                return await agent.with_tests()
            return await agent.without_tests(rules.tries)


def _blank(task: Task, track: Track) -> Result:
    return Result(
        exercise=task.exercise.id,
        language=task.exercise.language,
        repeat=task.repeat,
        track=track,
        status=Status.FAILED,
    )


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _concluded(blank: Result, account: Account) -> Result:
    last = account.judgements[-1] if account.judgements else None
    return replace(
        blank,
        status=_status(account, last),
        reason=account.reason or (last.reason if last else ""),
        tries=tuple(_try(judgement) for judgement in account.judgements),
        attempts=account.attempts,
        usage=account.usage,
        malformed=account.malformed,
        lazy_comments=account.lazy_comments,
        model_s=account.model_s,
    )


def _status(account: Account, last: Judgement | None) -> Status:
    causes = (
        (last is not None and last.passed, Status.PASSED),
        (account.exhausted, Status.EXHAUSTED_CONTEXT),
        (last is not None and last.tampered, Status.TAMPERED),
        (account.unusable, Status.MALFORMED),
        (account.out_of_budget, Status.BUDGET),
        (last is not None and last.timed_out, Status.TIMED_OUT),
    )
    return next((status for holds, status in causes if holds), Status.FAILED)


def _try(judgement: Judgement) -> Try:
    lines = judgement.output.splitlines()
    return Try(
        passed=judgement.passed,
        by_exit_code=judgement.by_exit_code,
        proven=judgement.proven,
        reason=judgement.reason,
        timed_out=judgement.timed_out,
        tests_passed=judgement.tests_passed,
        tests_total=judgement.tests_total,
        tests_s=judgement.tests_s,
        cpu_s=judgement.cpu_s,
        syntax_errors=sum(line.startswith("SyntaxError") for line in lines),
        indentation_errors=sum(line.startswith("IndentationError") for line in lines),
    )
