"""Statistics of failures and repeats over time. Pure functions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from assay.memory.snippets import SnippetRecord
from assay.memory.types import FailureRecord, Occurrence

_DAY_S: Final = 86_400.0
_WIDTHS: Final = (_DAY_S / 24, _DAY_S / 4, _DAY_S, 7 * _DAY_S, 30 * _DAY_S, 365 * _DAY_S)
_MOST_PERIODS: Final = 16
_MOST_FREQUENT: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A time span with its failures."""

    begins_at: float
    failures: int
    repeats: int
    """The failures that an earlier run already had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The contents of a memory and its effect."""

    records: int
    with_lesson: int
    shared: int
    harmful: int
    stale: int
    failures: int
    repeats: int
    used: int
    helped: int
    harmed: int
    period_s: float
    periods: tuple[Period, ...]
    frequent: tuple[tuple[str, int], ...]
    """The most frequent failures, by type and message."""
    snippets: int
    snippets_retired: int
    snippets_used: int
    snippets_helped: int
    snippets_harmed: int


def history_of(
    records: Sequence[FailureRecord],
    occurrences: Sequence[Occurrence],
    snippets: Sequence[SnippetRecord] = (),
) -> History:
    """Count the records, and divide the time from first to last into a few periods."""
    width = _width(occurrences)
    kinds: Counter[str] = Counter()
    for record in records:
        kinds[record.essence] += record.seen
    return History(
        records=len(records),
        with_lesson=sum(bool(record.lesson) for record in records),
        shared=sum(record.shared for record in records),
        harmful=sum(record.retired == "harmful" for record in records),
        stale=sum(record.retired == "stale" for record in records),
        failures=len(occurrences),
        repeats=sum(one.again for one in occurrences),
        used=sum(record.used for record in records),
        helped=sum(record.helped for record in records),
        harmed=sum(record.harmed for record in records),
        period_s=width,
        periods=_periods(occurrences, width),
        frequent=tuple(kinds.most_common(_MOST_FREQUENT)),
        snippets=len(snippets),
        snippets_retired=sum(bool(snippet.retired) for snippet in snippets),
        snippets_used=sum(snippet.used for snippet in snippets),
        snippets_helped=sum(snippet.helped for snippet in snippets),
        snippets_harmed=sum(snippet.harmed for snippet in snippets),
    )


def _width(occurrences: Sequence[Occurrence]) -> float:
    if not occurrences:
        return _DAY_S
    moments = [one.at for one in occurrences]
    span = max(moments) - min(moments)
    return next((width for width in _WIDTHS if span / width < _MOST_PERIODS - 1), _WIDTHS[-1])


def _periods(occurrences: Sequence[Occurrence], width: float) -> tuple[Period, ...]:
    """Return every period from the first to the last, including those without failures."""
    failures: Counter[int] = Counter()
    repeats: Counter[int] = Counter()
    for one in occurrences:
        failures[int(one.at // width)] += 1
        repeats[int(one.at // width)] += one.again
    if not failures:
        return ()
    last = max(failures)
    first = max(min(failures), last - _MOST_PERIODS + 1)
    return tuple(
        Period(begins_at=number * width, failures=failures[number], repeats=repeats[number])
        for number in range(first, last + 1)
    )
