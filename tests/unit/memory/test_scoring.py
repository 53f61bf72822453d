import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.memory.types import is_harmful, score, wilson_bounds

ROUNDING = 1e-12
COUNTS = st.integers(min_value=0, max_value=10_000)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 0, 0.0, 1.0), (1, 1, 0.2065, 1.0), (8, 10, 0.4902, 0.9433), (0, 4, 0.0, 0.4899)],
)
def test_the_interval_is_wilsons(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson_bounds(successes, trials) == pytest.approx((low, high), abs=1e-4)


@given(COUNTS, COUNTS)
def test_the_rate_lies_in_its_interval(helped: int, harmed: int) -> None:
    low, high = wilson_bounds(helped, helped + harmed)

    assert 0 <= low <= high <= 1
    if helped + harmed:
        assert low - 1e-9 <= helped / (helped + harmed) <= high + 1e-9


@given(COUNTS, COUNTS)
def test_help_never_lowers_what_a_lesson_is_worth(helped: int, harmed: int) -> None:
    if helped + harmed:
        known = score(helped, harmed)
        assert score(helped + 1, harmed) >= known - ROUNDING
        assert known >= score(helped, harmed + 1) - ROUNDING


def test_much_help_is_worth_more_than_a_little_at_the_same_rate() -> None:
    assert score(20, 0) > score(2, 0) > score(0, 0) > score(0, 1)


@pytest.mark.parametrize(
    ("helped", "harmed", "harmful"),
    [(0, 0, False), (0, 3, False), (0, 4, True), (1, 4, False), (1, 9, True), (5, 5, False)],
)
def test_a_lesson_is_harmful_once_that_is_as_good_as_certain(
    helped: int,
    harmed: int,
    harmful: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert is_harmful(helped, harmed) is harmful
