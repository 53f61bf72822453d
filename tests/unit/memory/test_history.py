from dataclasses import replace

from assay.memory.history import history_of
from assay.memory.types import Occurrence, Scope, record_of
from tests.conformance.memory.failures import CHART, DURATIONS

DAY = 86_400.0


def at(day: float, *, again: bool = False) -> Occurrence:
    return Occurrence(at=day * DAY, run="r", again=again)


def test_an_empty_memory_has_an_empty_history() -> None:
    history = history_of((), ())

    assert (history.records, history.failures, history.periods) == (0, 0, ())


def test_time_is_divided_into_a_few_periods_without_gaps() -> None:
    history = history_of((), [at(100), at(100.5), at(103, again=True), at(110, again=True)])

    assert history.period_s == DAY
    assert len(history.periods) == 11
    assert [period.failures for period in history.periods] == [2, 0, 0, 1, *([0] * 6), 1]
    assert sum(period.repeats for period in history.periods) == history.repeats == 2


def test_years_fit_into_the_picture_too() -> None:
    history = history_of((), [at(day) for day in range(0, 4000, 10)])

    assert len(history.periods) <= 16
    assert sum(period.failures for period in history.periods) == 400


def test_what_happened_most_comes_first() -> None:
    rare = replace(record_of(CHART, Scope(), 1.0), seen=2, retired="stale")
    often = replace(record_of(DURATIONS, Scope(), 1.0), seen=9, helped=3, harmed=1, used=5)

    history = history_of([rare, often], [])

    assert history.frequent[0] == ("NameError: name 're' is not defined", 9)
    assert (history.used, history.helped, history.harmed, history.stale) == (5, 3, 1, 1)
    assert history.shared == history.with_lesson == 2
