"""One benchmark run, from the user's request to a folder of results.

Exercises run concurrently, each in separate sandboxes, and a stopped run can resume.
"""

import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import anyio

from assay.bench.exercise import TEST_TIMEOUT_S, Exercise, Suite, Track
from assay.bench.score import Judge, Judgement
from assay.bench.solvers import ORACLE, RECORDED, Solver, open_player, plays_by_itself
from assay.bench.store import Result, ResultStore, Status, Try, is_final, open_store, read_run
from assay.bench.suites import Selection, load_suite
from assay.bench.toolchains.all import Toolchains, find_kits, place_of, versions_of
from assay.bench.tracks import Account, AgentSitting, BlindSitting
from assay.bench.validate import Gate, GateResult, ask_all
from assay.contracts.distribution import DISTRIBUTION
from assay.contracts.errors import (
    JournalError,
    ModelRefusedError,
    ModelUnavailableError,
    SandboxUnavailableError,
    UsageError,
)
from assay.contracts.goal import RunLimits
from assay.models.open import OpenOptions
from assay.runs.request import limits_of
from assay.settings.load import Settings
from assay.storage.certificates import describe_environment
from assay.wiring import check_extras, open_backend

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


GATE = "gate.json"
ENVIRONMENT = "environment.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOrder:
    """The request of a benchmark run."""

    suite: str
    dataset: Path | None = None
    strict: bool = False
    """Also run tests that the original harness skips."""
    selection: Selection = field(default_factory=Selection)
    track: Track = "blind"
    model: str = "auto"
    tries: int = 2
    effort: RunLimits = field(default_factory=RunLimits)
    repeat: int = 1
    jobs: int = 1
    test_jobs: int = 0
    """Concurrent test suites; 0: the number of processors."""
    timeout_s: float = TEST_TIMEOUT_S
    proof: bool = True
    gate: bool = True

    def __post_init__(self) -> None:
        for name in ("tries", "repeat", "jobs", "timeout_s"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be a positive number, not {getattr(self, name)}")


@dataclass(slots=True, kw_only=True)
class BenchCallbacks:
    """Callbacks for the progress of a run."""

    opening: OpenOptions = field(default_factory=OpenOptions)
    on_plan: Callable[[int, int], None] = lambda _all, _done: None
    """Receives the number of exercises, and how many of them are complete already."""
    on_gate: Callable[[GateResult], None] = lambda _: None
    on_gate_plan: Callable[[int], None] = lambda _: None
    on_start: Callable[[Task], None] = lambda _: None
    on_result: Callable[[Result], None] = lambda _: None


async def run_bench(
    order: BenchOrder, settings: Settings, out: Path, watching: BenchCallbacks
) -> None:
    """Run all requested exercises, or the remaining ones.

    Raises:
        UsageError: If the request is invalid.
        BudgetExceededError: If a cap is reached; completed results are stored.
        AssayError: If a component of Assay fails.
    """
    model = "" if plays_by_itself(order.model) else order.model
    check_extras("a benchmark", settings, "agent", "bench", model=model)
    suite = load(order, settings)
    exercises = order.selection.of(suite)
    matching = "strict" if order.track == "blind" else "lenient"
    async with (
        open_player(order.model, settings.models, watching.opening, matching=matching) as (
            name,
            player,
        ),
        open_store(out, _asked(order, suite, exercises, name)) as store,
        open_bench(order, settings, exercises) as bench,
    ):
        gate = await bench.ask_gate(exercises, watching) if order.gate else {}
        await anyio.to_thread.run_sync(_note, store, bench, gate)
        tasks = tuple(
            Task(
                exercise=exercise.prepared_for_reference() if order.model == ORACLE else exercise,
                repeat=repeat,
            )
            for repeat in range(1, order.repeat + 1)
            for exercise in exercises
        )
        watching.on_plan(len(tasks), len(store.read()))
        for result in store.read().values():
            watching.on_result(result)
        runner = Runner(
            rules=Rules(
                track=order.track,
                tries=order.tries,
                effort=replace(order.effort, check_timeout_s=order.timeout_s),
                jobs=order.jobs,
            ),
            store=store,
            player=player,
            judge=bench.judge,
            kits=bench.kits,
            gate=gate,
            settings=settings,
            on_start=watching.on_start,
            on_result=watching.on_result,
        )
        await runner.run(tasks)


def load(order: BenchOrder, settings: Settings) -> Suite:
    """Load the requested suite."""
    return load_suite(
        order.suite,
        dataset=order.dataset,
        cache_dir=place_of(settings).cache_dir,
        strict=order.strict,
    )


async def ask_gate(
    order: BenchOrder,
    settings: Settings,
    watching: BenchCallbacks,
    answers: list[GateResult],
    not_run: dict[str, str],
) -> None:
    """Validate every exercise; fills in the results, and why some cannot be validated.

    Raises:
        AssayError: The errors of `run_bench`.
    """
    exercises = order.selection.of(load(order, settings))
    async with open_bench(order, settings, exercises) as bench:
        for exercise in exercises:
            if why_not := bench.kits.why_not(exercise):
                not_run[exercise.id] = why_not
        answers.extend((await bench.ask_gate(exercises, watching)).values())


def order_of(folder: Path, *, dataset: Path | None, jobs: int) -> BenchOrder:
    """Return the request that repeats a stored run.

    Raises:
        UsageError: If the folder holds no run.
    """
    asked = read_run(folder)
    ordered = asked["order"]
    selection = Selection(
        languages=tuple(ordered["languages"]),
        names=tuple(ordered["names"]),
        limit=ordered["limit"],
        shard=tuple(ordered["shard"]),
    )
    return BenchOrder(
        suite=ordered["suite"],
        dataset=dataset or (Path(ordered["dataset"]) if ordered["dataset"] else None),
        strict=asked["strict"],
        selection=selection,
        track=asked["track"],
        model=f"{RECORDED}{folder}",
        tries=asked["tries"],
        effort=RunLimits(attempts=asked["attempts"] or 1, wall_s=asked["wall_s"] or 1800.0),
        repeat=asked["repeat"],
        jobs=jobs,
        timeout_s=asked["timeout_s"],
        proof=asked["verdict"] == "proof",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The components that score exercises."""

    judge: Judge
    kits: Toolchains
    versions: dict[Any, str]
    folder: Path

    async def ask_gate(
        self, exercises: tuple[Exercise, ...], watching: BenchCallbacks
    ) -> dict[str, GateResult]:
        """Validate every exercise that can run here."""
        runnable = tuple(one for one in exercises if not self.kits.why_not(one))
        gate = Gate(judge=self.judge, kits=self.kits, folder=self.folder, versions=self.versions)
        watching.on_gate_plan(len(runnable))
        return await ask_all(gate, runnable, watching.on_gate)


@asynccontextmanager
async def open_bench(
    order: BenchOrder, settings: Settings, exercises: tuple[Exercise, ...]
) -> AsyncGenerator[Bench]:
    """Open sandboxes with the toolchains of these exercises.

    Raises:
        IsolationUnavailableError: If this machine cannot provide the requested isolation.
    """
    kits = find_kits(place_of(settings), (exercise.language for exercise in exercises))
    async with open_backend(kits.sandbox_settings(settings.sandbox)) as backend:
        judge = Judge(
            backend=backend,
            limits=limits_of(settings.agent),
            turns=anyio.CapacityLimiter(order.test_jobs or os.cpu_count() or 1),
            timeout_s=order.timeout_s,
            proof=order.proof,
        )
        yield Bench(
            judge=judge,
            kits=kits,
            versions=await versions_of(backend, kits),
            folder=place_of(settings).cache_dir / "gate",
        )


def _asked(
    order: BenchOrder, suite: Suite, exercises: tuple[Exercise, ...], model: str
) -> dict[str, Any]:
    """Return the values that must be equal to resume a run."""
    return {
        "suite": suite.name,
        "source": suite.source,
        "digest": Suite(name=suite.name, source="", exercises=exercises).digest,
        "exercises": len(exercises),
        "strict": order.strict,
        "track": order.track,
        "model": model,
        "tries": order.tries if order.track != "agentic" else 1,
        "attempts": order.effort.attempts if order.track != "blind" else None,
        "wall_s": order.effort.wall_s if order.track != "blind" else None,
        "repeat": order.repeat,
        "timeout_s": order.timeout_s,
        "verdict": "proof" if order.proof else "exit code",
        "memory": "off",
        "order": _ordered(order),
    }


def _ordered(order: BenchOrder) -> dict[str, Any]:
    """Return how the exercises were chosen, so that a replay can choose the same."""
    return {
        "suite": order.suite,
        "dataset": str(order.dataset.absolute()) if order.dataset else None,
        "languages": list(order.selection.languages),
        "names": list(order.selection.names),
        "limit": order.selection.limit,
        "shard": list(order.selection.shard),
    }


def _note(store: ResultStore, bench: Bench, gate: dict[str, GateResult]) -> None:
    """Store the environment and the validation results for the report."""
    backend = bench.judge.backend
    environment = asdict(
        describe_environment(backend=backend.name, isolation=backend.isolation.value)
    )
    environment["assay"] = version(DISTRIBUTION)
    environment["toolchains"] = dict(bench.versions)
    answers = {name: asdict(answer) for name, answer in sorted(gate.items())}
    for name, content in ((ENVIRONMENT, environment), (GATE, answers)):
        path = store.folder / name
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
        partial.replace(path)
