"""The targets of the benchmark are met, missed or not measured, and nothing else."""

from dataclasses import replace

import pytest

from benchmarks.comparison.measurements import (
    DO_NOTHING,
    PANDAS,
    Burst,
    Latency,
    Measurements,
    Memory,
    Rate,
    spread_of,
)
from benchmarks.comparison.targets import BARE, DOCKER_RUN, ON_DEMAND, POOL, check_targets


def latency(runner: str, program: str, p50_ms: float, *, errors: int = 0) -> Latency:
    spread = spread_of([p50_ms / 1e3])
    return Latency(runner=runner, program=program, scope="whole", spread=spread, errors=errors)


def burst(runner: str, rest_ms: float) -> Burst:
    spread = spread_of([rest_ms / 1e3])
    return Burst(runner=runner, program=PANDAS, first=spread, rest=spread)


def memory(private_mb: float) -> Memory:
    return Memory(
        runner=POOL, copies=8, private_mb=private_mb, proportional_mb=9.0, with_parents_mb=12.0
    )


def rate(per_s: float) -> Rate:
    return Rate(runner=POOL, program=PANDAS, clients=2, executions=1, per_s=per_s)


GOOD = Measurements(
    machine={},
    rounds=1,
    pause_ms=50,
    pool_size=3,
    latencies=[
        latency(POOL, PANDAS, 5.0),
        latency(ON_DEMAND, PANDAS, 15.0),
        latency(BARE, DO_NOTHING, 15.0),
        latency(DOCKER_RUN, PANDAS, 500.0),
    ],
    bursts=[burst(POOL, 20.0), burst(ON_DEMAND, 16.0)],
    rates=[rate(150.0)],
    memory=[memory(5.0)],
)
TARGETS = [check.target for check in check_targets(GOOD)]


def missed(measured: Measurements) -> list[str]:
    return [check.target for check in check_targets(measured) if check.met is False]


def instead_of(old: Latency, new: Latency) -> Measurements:
    """Return the good results with one time replaced."""
    kept = [
        item for item in GOOD.latencies if (item.runner, item.program) != (old.runner, old.program)
    ]
    return replace(GOOD, latencies=[*kept, new])


def test_a_result_exactly_on_the_line_meets_every_target() -> None:
    assert missed(GOOD) == []
    assert all(check.met for check in check_targets(GOOD))


@pytest.mark.parametrize(
    ("worse", "targets"),
    [
        (instead_of(GOOD.latencies[0], latency(POOL, PANDAS, 5.01)), TARGETS[0:2]),
        (instead_of(GOOD.latencies[3], latency(DOCKER_RUN, PANDAS, 499)), TARGETS[1:2]),
        (instead_of(GOOD.latencies[1], latency(ON_DEMAND, PANDAS, 15.1)), TARGETS[2:3]),
        (replace(GOOD, rates=[rate(149.9)]), TARGETS[3:4]),
        (replace(GOOD, memory=[memory(5.01)]), TARGETS[4:5]),
        (replace(GOOD, bursts=[burst(POOL, 20.1), burst(ON_DEMAND, 16.0)]), TARGETS[5:6]),
        (instead_of(GOOD.latencies[0], latency(POOL, PANDAS, 5, errors=1)), TARGETS[6:7]),
    ],
    ids=["pool", "docker", "on demand", "rate", "memory", "degrading", "errors"],
)
def test_a_result_just_past_the_line_misses_that_target(
    worse: Measurements, targets: list[str]
) -> None:
    assert missed(worse) == targets


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    nothing = Measurements(machine={}, rounds=1, pause_ms=50, pool_size=3)

    checks = check_targets(nothing)

    assert {check.met for check in checks} == {None}
    assert {check.measured for check in checks} == {"not measured"}


def test_without_docker_only_its_own_target_is_open() -> None:
    measured = replace(GOOD, latencies=GOOD.latencies[:3])

    assert [check.target for check in check_targets(measured) if check.met is None] == TARGETS[1:2]
