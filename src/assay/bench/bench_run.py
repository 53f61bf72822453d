"""One benchmark run, from the user's request to a folder of results.

Exercises run concurrently, each in separate sandboxes, and a stopped run can resume.
"""

import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import anyio
from pydantic import TypeAdapter

from assay.bench.exercise import TEST_TIMEOUT_S, Exercise, Language, Suite, Track
from assay.bench.score import Scorer, ValidationResult, validate_exercise
from assay.bench.solvers import ORACLE, RECORDED, Solver, needs_no_model, open_solver
from assay.bench.store import (
    ENVIRONMENT,
    VALIDATION,
    Result,
    ResultStore,
    Status,
    open_store,
    read_run,
    write_json,
)
from assay.bench.suites import Selection, load_suite
from assay.bench.toolchains.all import Toolchains, find_toolchains, versions_of
from assay.bench.tracks import TimedModel, TrackRun
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
_EXTERNAL: Final = (SandboxUnavailableError, ModelUnavailableError, JournalError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """The request of a benchmark run."""

    suite: str
    dataset: Path | None = None
    strict: bool = False
    """Also run tests that the original harness skips."""
    selection: Selection = field(default_factory=Selection)
    track: Track = "blind"
    model: str = "auto"
    tries: int = 2
    limits: RunLimits = field(default_factory=RunLimits)
    """Of the agent, for each exercise."""
    repeat: int = 1
    jobs: int = 1
    """Concurrent exercises."""
    test_jobs: int = 0
    """Concurrent test suites; 0: the number of processors."""
    timeout_s: float = TEST_TIMEOUT_S
    proof: bool = True
    validate: bool = True
    """Whether the suite is validated first."""

    def __post_init__(self) -> None:
        for name in ("tries", "repeat", "jobs", "timeout_s"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be a positive number, not {getattr(self, name)}")

    def load_suite(self, settings: Settings) -> Suite:
        """Load the requested suite."""
        return load_suite(
            self.suite, dataset=self.dataset, cache_dir=settings.bench_dir, strict=self.strict
        )


_CONFIG: Final = TypeAdapter(BenchConfig)


def config_of(folder: Path, *, dataset: Path | None, jobs: int) -> BenchConfig:
    """Return the request that repeats a stored run.

    Raises:
        UsageError: If the folder holds no run.
    """
    config = _CONFIG.validate_python(read_run(folder)["order"])
    dataset = dataset or config.dataset
    return replace(config, model=f"{RECORDED}{folder}", dataset=dataset, jobs=jobs)


@dataclass(slots=True, kw_only=True)
class BenchCallbacks:
    """Callbacks for the progress of a run."""

    opening: OpenOptions = field(default_factory=OpenOptions)
    on_validation_plan: Callable[[int], None] = lambda _: None
    on_validation: Callable[[ValidationResult], None] = lambda _: None
    on_plan: Callable[[int, int], None] = lambda _all, _done: None
    """Receives the number of exercises, and how many of them are complete already."""
    on_start: Callable[[Exercise], None] = lambda _: None
    on_result: Callable[[Result], None] = lambda _: None


async def run_bench(
    config: BenchConfig, settings: Settings, out: Path, callbacks: BenchCallbacks
) -> None:
    """Run all requested exercises, or the remaining ones.

    Raises:
        UsageError: If the request is invalid.
        BudgetExceededError: If a cap is reached; completed results are stored.
        AssayError: If a component of Assay fails.
    """
    model = "" if needs_no_model(config.model) else config.model
    check_extras("a benchmark", settings, "agent", "bench", model=model)
    suite = config.load_suite(settings)
    exercises = config.selection.of(suite)
    matching = "strict" if config.track == "blind" else "lenient"
    async with (
        open_solver(config.model, settings.models, callbacks.opening, matching=matching) as (
            name,
            solver,
        ),
        open_store(out, _identity(config, suite, exercises, name)) as store,
        open_bench(config, settings, exercises, callbacks) as bench,
    ):
        if config.validate:
            await bench.validate()
        await anyio.to_thread.run_sync(bench.describe, store.folder)
        await bench.run(solver, store)


async def validate_suite(
    config: BenchConfig, settings: Settings, callbacks: BenchCallbacks
) -> tuple[tuple[ValidationResult, ...], dict[str, str]]:
    """Validate every exercise; returns the results, and why some exercises cannot run.

    Raises:
        AssayError: The errors of `run_bench`.
    """
    exercises = config.selection.of(config.load_suite(settings))
    async with open_bench(config, settings, exercises, callbacks) as bench:
        await bench.validate()
        reasons = {one.id: bench.toolchains.why_not(one) for one in exercises}
    not_run = {name: why_not for name, why_not in reasons.items() if why_not}
    return tuple(bench.validation[name] for name in sorted(bench.validation)), not_run


def _identity(
    config: BenchConfig, suite: Suite, exercises: tuple[Exercise, ...], model: str
) -> dict[str, Any]:
    """Return the values that must be equal to resume a run, and the request for a replay."""
    dataset = config.dataset.absolute() if config.dataset else None
    return {
        "suite": suite.name,
        "source": suite.source,
        "digest": Suite(name=suite.name, source="", exercises=exercises).digest,
        "exercises": len(exercises),
        "strict": config.strict,
        "track": config.track,
        "model": model,
        "tries": config.tries if config.track != "agentic" else 1,
        "attempts": config.limits.attempts if config.track != "blind" else None,
        "wall_s": config.limits.wall_s if config.track != "blind" else None,
        "repeat": config.repeat,
        "timeout_s": config.timeout_s,
        "verdict": "proof" if config.proof else "exit code",
        "memory": "off",
        "order": _CONFIG.dump_python(replace(config, dataset=dataset), mode="json"),
    }


@dataclass(slots=True, kw_only=True)
class BenchRun:
    """The open components of a run: toolchains of the languages, sandboxes and the scorer."""

    config: BenchConfig
    settings: Settings
    exercises: tuple[Exercise, ...]
    toolchains: Toolchains
    versions: Mapping[Language, str]
    scorer: Scorer
    callbacks: BenchCallbacks
    validation: dict[str, ValidationResult] = field(default_factory=dict[str, ValidationResult])
    pause_s: float = 2.0
    """Before the first restart of an exercise."""

    async def validate(self) -> None:
        """Validate every exercise that can run here, concurrently.

        Raises:
            SandboxUnavailableError: If no sandbox is available.
        """
        runnable = [one for one in self.exercises if not self.toolchains.why_not(one)]
        self.callbacks.on_validation_plan(len(runnable))
        # The scorer itself limits concurrent tests.
        waiting = anyio.CapacityLimiter(2 * self.scorer.turns.total_tokens)

        async def validate_one(exercise: Exercise) -> None:
            async with waiting:
                result = await validate_exercise(
                    exercise,
                    self.scorer,
                    self.toolchains,
                    version=self.versions[exercise.language],
                    folder=self.settings.bench_dir / "validation",
                )
            self.validation[exercise.id] = result
            self.callbacks.on_validation(result)

        async with anyio.create_task_group() as tasks:
            for exercise in runnable:
                tasks.start_soon(validate_one, exercise)

    def describe(self, folder: Path) -> None:
        """Store the environment and the validation results for the report."""
        backend = self.scorer.backend
        environment = asdict(
            describe_environment(backend=backend.name, isolation=backend.isolation.value)
        )
        environment["assay"] = version(DISTRIBUTION)
        environment["toolchains"] = dict(self.versions)
        validation = {name: asdict(self.validation[name]) for name in sorted(self.validation)}
        write_json(folder / ENVIRONMENT, environment)
        write_json(folder / VALIDATION, validation)

    async def run(self, solver: Solver, store: ResultStore) -> None:
        """Run the remaining exercises.

        Raises:
            BudgetExceededError: If a cap on the whole run is reached; completed results are stored.
            JournalError: If a result cannot be written.
        """
        callbacks, done = self.callbacks, store.read()
        callbacks.on_plan(len(self.exercises) * self.config.repeat, len(done))
        for result in done.values():
            callbacks.on_result(result)
        room = anyio.CapacityLimiter(self.config.jobs)

        async def work(exercise: Exercise, result: Result) -> None:
            async with room:
                callbacks.on_start(exercise)
                result = await self._run_one(exercise, result, solver, store)
                await store.append(result)
            callbacks.on_result(result)

        async with anyio.create_task_group() as tasks:
            for repeat in range(1, self.config.repeat + 1):
                for exercise in self.exercises:
                    blank = Result(
                        exercise=exercise.id,
                        language=exercise.language,
                        repeat=repeat,
                        track=self.config.track,
                    )
                    if blank.key not in done or not done[blank.key].counted:
                        tasks.start_soon(work, exercise, blank)

    async def _run_one(
        self, exercise: Exercise, blank: Result, solver: Solver, store: ResultStore
    ) -> Result:
        """Return the result of one exercise; repeats it after a failure that is not the model's."""
        if why_not := self.toolchains.why_not(exercise):
            return replace(blank, status=Status.NOT_RUN, reason=why_not)
        if self.config.model == ORACLE:
            exercise = exercise.prepared_for_reference()
        validation = self.validation.get(exercise.id)
        begun = time.monotonic()
        while True:
            result = replace(blank)
            try:
                replies = store.replies_of(exercise, result.repeat)
                async with solver(exercise, replies) as model:
                    track_run = TrackRun(
                        exercise=exercise,
                        commands=self.toolchains.commands(exercise),
                        model=TimedModel(model),
                        scorer=self.scorer,
                        settings=self.settings,
                        limits=replace(self.config.limits, check_timeout_s=self.config.timeout_s),
                        tries=self.config.tries,
                        folder=store.work_of(exercise, result.repeat),
                        result=result,
                        provable=validation is None or validation.provable,
                    )
                    await track_run.solve()
            except ModelRefusedError as error:
                result = replace(blank, status=Status.REFUSED, reason=str(error))
            except _EXTERNAL as error:
                reason = f"{type(error).__name__}: {error}"
                result = replace(blank, status=Status.INFRASTRUCTURE, reason=reason)
            if result.status is not Status.INFRASTRUCTURE or result.retries == _RETRIES:
                result.wall_s = time.monotonic() - begun
                return result
            blank.retries += 1
            await anyio.sleep(self.pause_s * blank.retries)


@asynccontextmanager
async def open_bench(
    config: BenchConfig,
    settings: Settings,
    exercises: tuple[Exercise, ...],
    callbacks: BenchCallbacks,
) -> AsyncGenerator[BenchRun]:
    """Open sandboxes with the toolchains of these exercises.

    Raises:
        IsolationUnavailableError: If this machine cannot provide the requested isolation.
    """
    toolchains = find_toolchains(settings, (exercise.language for exercise in exercises))
    async with open_backend(toolchains.sandbox_settings(settings.sandbox)) as backend:
        yield BenchRun(
            config=config,
            settings=settings,
            exercises=exercises,
            toolchains=toolchains,
            versions=await versions_of(backend, toolchains),
            scorer=Scorer(
                backend=backend,
                limits=limits_of(settings.agent),
                turns=anyio.CapacityLimiter(config.test_jobs or os.cpu_count() or 1),
                timeout_s=config.timeout_s,
                proof=config.proof,
            ),
            callbacks=callbacks,
        )
