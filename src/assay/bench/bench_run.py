"""One benchmark run, from the user's request to a folder of results."""

import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio

from assay.bench.exercise import TEST_TIMEOUT_S, Exercise, Suite, Track
from assay.bench.result import Result
from assay.bench.runner import Rules, Runner, Task
from assay.bench.score import Judge
from assay.bench.selection import Selection
from assay.bench.solvers import ORACLE, RECORDED, open_player, plays_by_itself
from assay.bench.store import ResultStore, open_store, read_run
from assay.bench.suites import load_suite
from assay.bench.toolchains.all import Toolchains, find_kits, place_of, versions_of
from assay.bench.validate import Gate, GateResult, ask_all
from assay.contracts.distribution import DISTRIBUTION
from assay.contracts.errors import UsageError
from assay.contracts.goal import RunLimits
from assay.models.open import OpenOptions
from assay.runs.limits import limits_of
from assay.settings.load import Settings
from assay.storage.environment import describe_environment
from assay.wiring import check_extras, open_backend

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
                effort=replace(order.effort, check_s=order.timeout_s),
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
