"""The benchmark takes turns, counts failures, and does not let a late one spoil the rate."""

import pytest

from benchmarks.comparison.measurements import PROGRAMS, Burst, Latency
from benchmarks.comparison.runners import ExecutionFailedError, Times
from benchmarks.comparison.schedule import (
    BURST,
    RATE_SLICES,
    Client,
    count_steps,
    entries_of_round,
    measure_bursts,
    measure_paced,
    rate_of,
)

NAMES = ["native-pool", "bare", "docker-run"]


class ScriptedRunner:
    """Takes the time it is told to have taken; `None` is a failure."""

    def __init__(self, *times: float | None) -> None:
        self._times = list(times)
        self.programs: list[str] = []

    async def execute(self, program: str) -> Times:
        whole_s = self._times[len(self.programs) % len(self._times)]
        self.programs.append(program)
        if whole_s is None:
            raise ExecutionFailedError("no such thing")
        return Times(whole_s=whole_s, run_s=whole_s / 2)


def ignore(what: str) -> None:
    del what


def test_a_round_has_every_runner_and_program_once() -> None:
    wanted = sorted((name, program) for name in NAMES for program in PROGRAMS)

    assert all(sorted(entries_of_round(NAMES, number)) == wanted for number in range(5))


def test_rounds_differ_in_order_and_repeat_from_run_to_run() -> None:
    rounds = [entries_of_round(NAMES, number) for number in range(5)]

    assert len({tuple(entries) for entries in rounds}) > 1
    assert rounds == [entries_of_round(NAMES, number) for number in range(5)]


def test_a_slow_contender_sits_out_after_a_few_rounds() -> None:
    taking_part = [
        sum(name == "llm-sandbox-fresh" for name, _ in entries_of_round(["llm-sandbox-fresh"], n))
        for n in range(5)
    ]

    assert taking_part == [2, 2, 2, 0, 0]


async def test_the_first_execution_of_each_program_does_not_count() -> None:
    runner = ScriptedRunner(9.0, 9.0, 0.001, 0.001, 0.001, 0.001)

    latencies, failures = await measure_paced({"bare": runner}, 2, ignore, pause_s=0)

    assert sorted(runner.programs) == sorted(PROGRAMS * 3)
    assert {item.spread and item.spread.p95_ms for item in latencies} == {1.0, 0.5}
    assert failures == {}


async def test_failures_are_counted_and_their_time_is_not() -> None:
    latencies, failures = await measure_paced({"bwrap": ScriptedRunner(None)}, 2, ignore, pause_s=0)

    assert latencies == [
        Latency(runner="bwrap", program=program, scope="whole", spread=None, errors=2)
        for program in PROGRAMS
    ]
    assert failures == {"bwrap": "no such thing"}


async def test_a_burst_tells_the_head_start_from_the_rest() -> None:
    one_burst = [0.001] * 3 + [0.010] * (BURST - 3)
    runner = ScriptedRunner(*one_burst)

    bursts, _ = await measure_bursts({"native-pool": runner}, 1, ignore, refill_s=0)

    assert [head_and_tail(burst) for burst in bursts] == [(1.0, 10.0)] * len(PROGRAMS)


def head_and_tail(burst: Burst) -> tuple[float, float]:
    assert burst.first is not None
    assert burst.rest is not None
    return burst.first.p95_ms, burst.rest.min_ms


@pytest.mark.parametrize(
    ("clients", "per_s"),
    [
        ([], 0.0),
        ([Client(executions=100, elapsed_s=1.0), Client(executions=100, elapsed_s=1.0)], 200.0),
        # Executions of 0.8 s: the last of each was under way when the second was over.
        ([Client(executions=2, elapsed_s=1.6), Client(executions=2, elapsed_s=1.6)], 2.5),
    ],
)
def test_a_rate_adds_up_clients_and_averages_over_time(clients: list[Client], per_s: float) -> None:
    assert rate_of(clients) == pytest.approx(per_s)


def test_the_progress_bar_knows_how_far_it_is() -> None:
    steps = count_steps(NAMES, rounds=2, bursts=4, measured_rates=2)

    first, paced, bursts = 3 * 2, 2 * 3 * 2, 4 * 1 * 2
    assert steps == first + paced + bursts + RATE_SLICES * 2 * 2
