import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.bench.summary import Rate, mcnemar


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(198, 225, 0.831, 0.916), (162, 225, 0.658, 0.775), (0, 10, 0.0, 0.278), (5, 5, 0.566, 1.0)],
)
def test_the_interval_is_wilsons(successes: int, trials: int, low: float, high: float) -> None:
    assert Rate(successes=successes, trials=trials).interval == pytest.approx((low, high), abs=1e-3)


def test_of_nothing_anything_could_be_true() -> None:
    assert Rate(successes=0, trials=0).interval == (0.0, 1.0)
    assert Rate(successes=0, trials=0).value == 0.0


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_rate_lies_in_its_own_interval(numbers: tuple[int, int]) -> None:
    rate = Rate(successes=numbers[0], trials=numbers[1])
    low, high = rate.interval
    assert 0.0 <= low <= rate.value <= high <= 1.0


@pytest.mark.parametrize(
    ("gained", "lost", "p_value"),
    [(0, 0, 1.0), (5, 5, 1.0), (10, 0, 2 / 1024), (8, 2, 112 / 1024), (1, 0, 1.0), (6, 0, 0.03125)],
)
def test_mcnemar_is_the_exact_two_sided_chance(gained: int, lost: int, p_value: float) -> None:
    assert mcnemar(gained, lost) == pytest.approx(p_value)
    assert mcnemar(lost, gained) == pytest.approx(p_value)
