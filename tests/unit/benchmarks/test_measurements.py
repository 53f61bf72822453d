"""Medians, percentiles and factors of the benchmark."""

import pytest

from benchmarks.comparison.measurements import (
    DO_NOTHING,
    PANDAS,
    Latency,
    Measurements,
    Rate,
    spread_of,
    times_as_long,
)


def test_the_order_of_the_times_does_not_matter() -> None:
    times_s = [number / 1000 for number in range(100, 0, -1)]

    spread = spread_of(times_s)

    assert (spread.count, spread.min_ms) == (100, 1.0)
    assert spread.p50_ms == pytest.approx(50.5)
    assert spread.p95_ms == pytest.approx(95.0)


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (2, 2), (19, 19), (20, 19), (21, 20)])
def test_the_p95_is_one_of_the_times(count: int, rank: int) -> None:
    times_s = [float(number) for number in range(1, count + 1)]

    assert spread_of(times_s).p95_ms == rank * 1000


def test_no_times_have_no_spread() -> None:
    with pytest.raises(ValueError, match="no times"):
        spread_of([])


@pytest.mark.parametrize(
    ("measured", "reference", "factor"),
    [(6.0, 2.0, 3.0), (None, 2.0, None), (6.0, None, None), (6.0, 0.0, None), (0.0, 2.0, 0.0)],
)
def test_a_factor_needs_both_sides(
    measured: float | None, reference: float | None, factor: float | None
) -> None:
    assert times_as_long(measured, reference) == factor


def test_a_median_is_found_by_runner_program_and_scope() -> None:
    measured = Measurements(
        machine={},
        rounds=1,
        pause_ms=50,
        pool_size=3,
        latencies=[
            Latency(runner="bare", program=DO_NOTHING, scope="whole", spread=spread_of([0.020])),
            Latency(runner="bare", program=PANDAS, scope="whole", spread=spread_of([0.300])),
            Latency(runner="native-pool", program=PANDAS, scope="run", spread=spread_of([0.003])),
            Latency(runner="bwrap", program=PANDAS, scope="whole", spread=None, errors=4),
        ],
        rates=[Rate(runner="bwrap", program=PANDAS, clients=2, executions=9, per_s=3.0, errors=2)],
    )

    assert measured.p50_ms("bare", PANDAS) == pytest.approx(300)
    assert measured.p50_ms("native-pool", PANDAS, "run") == pytest.approx(3)
    assert measured.p50_ms("native-pool", PANDAS) is None
    assert measured.p50_ms("bwrap", PANDAS) is None
    assert measured.per_s("bwrap", PANDAS) == 3.0
    assert measured.errors_of("bwrap") == 6
    assert measured.errors_of("bare") == 0
