"""Benchmarks in real sandboxes: who passes and who does not, who sees what, and what is counted."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from assay.bench.bench_run import (
    BenchCallbacks,
    BenchConfig,
    BenchRun,
    open_bench,
    validate_suite,
)
from assay.bench.exercise import Exercise, Track
from assay.bench.solvers import Solver, open_solver
from assay.bench.store import ResultStore, Status, open_store
from assay.bench.suites import load_folder
from assay.bench.toolchains.all import Toolchains
from assay.bench.toolchains.toolchain import Installation, Missing
from assay.contracts.errors import ModelUnavailableError, UsageError
from assay.contracts.goal import RunLimits
from assay.contracts.messages import ModelInfo, Reply, Request
from assay.contracts.ports import Model, OnText, ignore_text
from assay.models.open import OpenOptions
from tests.support.benches import bench_settings, measure, requests_in, results_in
from tests.support.exercises import SECRET, simple_suite
from tests.support.undertakings import SMALL, a_script

RIGHT = "```python\ndef add(a, b):\n    return a + b\n```"
WRONG = "```python\ndef add(a, b):\n    return a - b\n```"
FORGED = (
    "```python\nimport unittest\n\n\ndef always(self, *arguments):\n    pass\n\n\n"
    "unittest.TestCase.assertEqual = always\n\n\ndef add(a, b):\n    return 0\n```"
)


@pytest.mark.slow
@pytest.mark.parametrize("track", ["blind", "agentic"])
async def test_the_oracle_solves_and_the_stub_does_not(tmp_path: Path, track: Track) -> None:
    suite = str(simple_suite(tmp_path / "suite", 2))
    limits = RunLimits(attempts=1)
    oracle = await measure(tmp_path, "o", suite=suite, model="oracle", track=track, limits=limits)
    stub = await measure(tmp_path, "s", suite=suite, model="stub", track=track, limits=limits)
    assert [result.status for result in oracle.results] == [Status.PASSED, Status.PASSED]
    assert [result.status for result in stub.results] == [Status.FAILED, Status.FAILED]
    assert all(one.proven for result in oracle.results for one in result.tries)


async def test_blind_hides_the_tests_and_tells_their_whole_output_after_a_try(
    tmp_path: Path,
) -> None:
    suite = str(simple_suite(tmp_path / "suite", 1))
    model = a_script(tmp_path, [WRONG, RIGHT], SMALL)
    summary = await measure(tmp_path, "out", suite=suite, model=model)
    (result,) = summary.results
    assert [one.passed for one in result.tries] == [False, True]
    first, second = requests_in(tmp_path / "out")
    assert "Add two numbers." in first
    assert "def add(a, b)" in first
    assert "assertEqual" not in first
    assert "test_hidden_number" not in first
    assert "test_hidden_number" in second
    assert "See the testing errors above." in second
    assert summary.rate_by_try(1).successes == 0
    assert summary.rate_by_try(2).successes == 1


async def test_a_single_try_is_a_single_try(tmp_path: Path) -> None:
    suite = str(simple_suite(tmp_path / "suite", 1))
    model = a_script(tmp_path, [WRONG, RIGHT], SMALL)
    summary = await measure(tmp_path, "out", suite=suite, model=model, tries=1)
    assert [result.status for result in summary.results] == [Status.FAILED]
    assert len(requests_in(tmp_path / "out")) == 1


async def test_a_reply_that_cannot_be_used_is_asked_for_again_and_counted(tmp_path: Path) -> None:
    suite = str(simple_suite(tmp_path / "suite", 1))
    model = a_script(tmp_path, ["I would rather not.", RIGHT], SMALL)
    (result,) = (await measure(tmp_path, "out", suite=suite, model=model)).results
    assert result.passed
    assert result.malformed == 1
    assert len(result.tries) == 1


@pytest.mark.parametrize("track", ["blind", "blind+exec", "agentic"])
async def test_no_track_shows_the_reference(tmp_path: Path, track: Track) -> None:
    suite = str(simple_suite(tmp_path / "suite", 1))
    model = a_script(tmp_path, [{"text": WRONG, "repeat": True}], SMALL)
    config = {"track": track, "limits": RunLimits(attempts=2), "model": model, "suite": suite}
    await measure(tmp_path, "out", **config)
    told = requests_in(tmp_path / "out")
    assert told
    assert not any(SECRET in request for request in told)
    kept = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]
    # The detector can fire: tests are in what is told first, where the track says so.
    assert ("self.assertEqual(add(2000" in told[0]) is (track == "agentic")


async def test_what_is_forged_is_not_solved_though_the_exit_code_says_so(tmp_path: Path) -> None:
    suite = str(simple_suite(tmp_path / "suite", 1))
    model = a_script(tmp_path, [{"text": FORGED, "repeat": True}], SMALL)
    summary = await measure(tmp_path, "out", suite=suite, model=model)
    (result,) = summary.results
    assert result.status is Status.TAMPERED
    assert result.tries[0].by_exit_code
    assert summary.disagreements == (result,)
    believed = await measure(tmp_path, "believed", suite=suite, model=model, proof=False)
    assert believed.results[0].passed


async def test_the_validation_finds_a_wrong_reference_and_keeps_its_answers(tmp_path: Path) -> None:
    suite = str(simple_suite(tmp_path / "suite", 2, wrong=(1,)))
    config = BenchConfig(suite=suite)
    settings = bench_settings(tmp_path)
    answers, _ = await validate_suite(config, settings, BenchCallbacks())
    assert {one.exercise: one.oracle_accepted for one in answers} == {
        "python/adding-0": True,
        "python/adding-1": False,
    }
    assert all(one.stub_rejected for one in answers)
    kept = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "cache/bench/validation").iterdir()
    }
    assert await validate_suite(config, settings, BenchCallbacks()) == (answers, {})
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.slow
async def test_a_run_that_is_done_again_asks_nobody_twice(tmp_path: Path) -> None:
    suite = str(simple_suite(tmp_path / "suite", 1))
    model = a_script(tmp_path, [WRONG, RIGHT], SMALL)
    await measure(tmp_path, "out", suite=suite, model=model)
    before = results_in(tmp_path / "out")
    (tmp_path / "out" / "results.jsonl").unlink()
    # The script has been said; were anything asked anew, it would begin from its first line.
    await measure(tmp_path, "out", suite=suite, model=model)
    assert results_in(tmp_path / "out") == before


@pytest.mark.slow
async def test_a_replay_comes_out_the_same(tmp_path: Path) -> None:
    suite = str(simple_suite(tmp_path / "suite", 2, wrong=(1,)))
    await measure(tmp_path, "first", suite=suite, model="oracle")
    model = f"recorded:{tmp_path / 'first'}"
    await measure(tmp_path, "again", suite=suite, model=model)
    assert results_in(tmp_path / "again") == results_in(tmp_path / "first")


async def test_another_order_does_not_go_on_in_the_same_folder(tmp_path: Path) -> None:
    suite = str(simple_suite(tmp_path / "suite", 1))
    await measure(tmp_path, "out", suite=suite, model="stub", tries=1)
    with pytest.raises(UsageError, match="tries"):
        await measure(tmp_path, "out", suite=suite, model="stub", tries=2)


@dataclass
class Unreachable:
    """A model that answers nobody."""

    name: str = "unreachable"
    info: ModelInfo = field(
        default_factory=lambda: ModelInfo(
            context_tokens=1000, max_output_tokens=100, tool_calls=False, price=None
        )
    )
    asked: int = 0

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        del request, on_text
        self.asked += 1
        raise ModelUnavailableError("nobody is there")


def answering(model: Model) -> Solver:
    @asynccontextmanager
    async def solver(exercise: Exercise, replies: Path) -> AsyncGenerator[Model]:
        del exercise, replies
        yield model

    return solver


@asynccontextmanager
async def a_run(folder: Path) -> AsyncGenerator[tuple[BenchRun, ResultStore]]:
    exercises = load_folder(simple_suite(folder / "suite", 1)).exercises
    config, settings = BenchConfig(suite="suite"), bench_settings(folder)
    async with (
        open_bench(config, settings, exercises, BenchCallbacks()) as bench,
        open_store(folder / "out", {}) as store,
    ):
        bench.pause_s = 0.0
        yield bench, store


async def test_what_fails_for_other_reasons_is_tried_again_and_counted_apart(
    tmp_path: Path,
) -> None:
    model = Unreachable()
    async with a_run(tmp_path) as (bench, store):
        await bench.run(answering(model), store)
        (result,) = store.read().values()
        assert result.status is Status.INFRASTRUCTURE
        assert not result.counted
        assert (result.retries, model.asked) == (2, 3)
        # It is done again by the next run, and the newer result counts.
        async with open_solver("oracle", bench.settings.models, OpenOptions()) as (_, oracle):
            await bench.run(oracle, store)
        (result,) = store.read().values()
        assert result.passed


async def test_a_language_that_cannot_run_here_is_not_run_and_not_failed(tmp_path: Path) -> None:
    missing = (Missing(what="pytest", fix="install it"),)
    python = Installation(language="python", folder=tmp_path, missing=missing)
    model = Unreachable()
    async with a_run(tmp_path) as (bench, store):
        bench.toolchains = Toolchains(found={"python": python})
        await bench.run(answering(model), store)
        (result,) = store.read().values()
    assert result.status is Status.NOT_RUN
    assert result.reason == "missing: pytest"
    assert not result.counted
    assert model.asked == 0
