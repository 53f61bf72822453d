"""Measures the overhead of the benchmark harness over the bare test commands.

    python benchmarks/bench_harness.py SUITE [--dataset PATH] [--languages python,go] [--rounds 3]

Alternates two sides for each exercise: the bare command in a sandbox that holds the files, and the
harness with the model `oracle` and the verdict by exit code. The harness reads the reply, opens
fresh sandboxes, copies and records files, and writes results. Both run the same tests once, in the
same kind of sandbox. Prints the ratio of the sums, and the extra time of the independent check.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio

from assay.bench.bench_run import BenchCallbacks, BenchConfig, BenchRun, open_bench
from assay.bench.exercise import Exercise
from assay.bench.solvers import open_solver
from assay.bench.store import open_store
from assay.bench.suites import Selection
from assay.contracts.execution import Command
from assay.models.open import OpenOptions
from assay.sandbox.tree_io import write_tree
from assay.settings.load import load_settings


async def timed(work: Callable[[], Awaitable[None]]) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


class Side:
    """One way to run the tests of an exercise."""

    def __init__(self, bench: BenchRun, scratch: Path) -> None:
        self.bench = bench
        self.scratch = scratch
        self.runs = 0

    async def bare(self, exercise: Exercise) -> float:
        """Time only the command: the files exist already."""
        commands = self.bench.toolchains.commands(exercise)
        tree = exercise.pristine.with_files(exercise.reference_setup.files)
        scorer = self.bench.scorer
        async with scorer.backend.open_sandbox(scorer.limits) as sandbox:
            await write_tree(sandbox, tree.with_files(exercise.reference.files))
            argv = ("bash", "-c", commands.bare)
            result = await sandbox.run(Command(argv=argv, cwd=exercise.folder))
            if not result.succeeded:
                raise SystemExit(f"{exercise.id}: the bare command failed\n{result.stdout}")
            return result.duration_s

    async def harness(self, exercise: Exercise, *, proof: bool) -> float:
        """Time the whole exercise, from the request to the line in the results."""
        self.runs += 1
        scorer = replace(self.bench.scorer, proof=proof)
        bench = replace(self.bench, exercises=(exercise,), scorer=scorer)
        async with (
            open_solver("oracle", bench.settings.models, OpenOptions()) as (_, oracle),
            open_store(self.scratch / str(self.runs), {}) as store,
        ):
            spent = await timed(partial(bench.run, oracle, store))
            (result,) = store.read().values()
        if not result.tries or not result.tries[0].by_exit_code:
            raise SystemExit(f"{exercise.id}: the harness says {result.status}: {result.reason}")
        return spent


async def compare(config: BenchConfig, rounds: int) -> None:
    settings = load_settings()
    exercises = config.selection.of(config.load_suite(settings))
    sums: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="assay-harness-") as scratch:
        async with open_bench(config, settings, exercises, BenchCallbacks()) as bench:
            side = Side(bench, Path(scratch))
            for exercise in exercises:
                if why_not := bench.toolchains.why_not(exercise):
                    print(f"{exercise.id:32} not run: {why_not}")
                    continue
                times = await one_exercise(side, exercise, rounds)
                row = [statistics.median(values) for values in times]
                sums.setdefault(exercise.language, [0.0, 0.0, 0.0])
                for place, value in enumerate(row):
                    sums[exercise.language][place] += value
                bare, harness, proof = row
                print(
                    f"{exercise.id:32} bare {bare:6.2f} s   harness {harness:6.2f} s "
                    f"({harness / bare:5.2f})   with proof {proof:6.2f} s ({proof / bare:5.2f})",
                    flush=True,
                )
    report(sums)


async def one_exercise(side: Side, exercise: Exercise, rounds: int) -> list[list[float]]:
    """Return the times of bare command, harness and harness with independent check, in rotation."""
    times: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        times[0].append(await side.bare(exercise))
        times[1].append(await side.harness(exercise, proof=False))
        times[2].append(await side.harness(exercise, proof=True))
    return times


def report(sums: dict[str, list[float]]) -> None:
    print()
    total = [sum(values[place] for values in sums.values()) for place in range(3)]
    for name, (bare, harness, proof) in [*sums.items(), ("all", total)]:
        print(
            f"{name:12} bare {bare:7.2f} s   harness {harness:7.2f} s, "
            f"{100 * (harness / bare - 1):+5.1f} %   "
            f"with proof {proof:7.2f} s, {proof / bare:4.2f} times"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("suite")
    parser.add_argument("--dataset", type=Path)
    parser.add_argument("--languages", default="")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    languages = tuple(word for word in arguments.languages.split(",") if word)
    config = BenchConfig(
        suite=arguments.suite,
        model="oracle",
        tries=1,
        dataset=arguments.dataset,
        selection=Selection(languages=languages, limit=arguments.limit),  # pyright: ignore[reportArgumentType] - a command-line argument
    )
    anyio.run(compare, config, arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
