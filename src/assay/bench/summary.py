"""Summary of a run, and comparison of two runs on the same exercises.

Includes the statistics: the confidence of a rate, and the significance of a difference.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from assay.bench.exercise import LANGUAGES, Language
from assay.bench.store import (
    ENVIRONMENT,
    VALIDATION,
    Result,
    Status,
    read_results,
    read_run,
)
from assay.contracts.errors import UsageError
from assay.contracts.messages import Usage

_Z: Final = 1.959963984540054
"""Of the standard normal distribution, for 95 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A share of successes with its 95 % Wilson interval."""

    successes: int
    trials: int

    @property
    def value(self) -> float:
        return self.successes / self.trials if self.trials else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Return the interval; 0 to 1 if there were no trials."""
        if not self.trials:
            return 0.0, 1.0
        rate, n = self.value, self.trials
        centre = rate + _Z**2 / (2 * n)
        spread = _Z * math.sqrt(rate * (1 - rate) / n + _Z**2 / (4 * n**2))
        scale = 1 + _Z**2 / n
        # At the ends the bound is exact, despite rounding.
        low = 0.0 if self.successes == 0 else (centre - spread) / scale
        high = 1.0 if self.successes == n else (centre + spread) / scale
        return low, high

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.successes}/{self.trials} = {100 * self.value:.1f} % "
            f"[{100 * low:.1f}, {100 * high:.1f}]"
        )


def mcnemar(gained: int, lost: int) -> float:
    """Return the exact two-sided p-value of McNemar's test.

    Of the exercises that only one run solved, equally good runs should each have half: the p-value
    is the probability of a split at least as uneven as this one.
    """
    n = gained + lost
    if n == 0:
        return 1.0
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**n)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One run with the values for reports."""

    folder: Path
    asked: Mapping[str, Any]
    environment: Mapping[str, Any]
    validation: Mapping[str, Mapping[str, Any]]
    results: tuple[Result, ...]

    @cached_property
    def counted(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.counted)

    @property
    def tasks(self) -> int:
        """Return the number of results of a complete run."""
        return self.asked["exercises"] * self.asked["repeat"]

    @property
    def complete(self) -> bool:
        return len(self.results) >= self.tasks

    @property
    def rate(self) -> Rate:
        """Return the rate over all results that ran."""
        return rate_of(self.counted)

    @property
    def clean_rate(self) -> Rate:
        """Return the rate without exercises whose tests reject the reference or accept the stub."""
        unclean = {
            name
            for name, answer in self.validation.items()
            if not (answer["oracle_accepted"] and answer["stub_rejected"])
        }
        return rate_of(result for result in self.counted if result.exercise not in unclean)

    def rate_by_try(self, number: int) -> Rate:
        passed = sum(result.passed_by(number) for result in self.counted)
        return Rate(successes=passed, trials=len(self.counted))

    @property
    def rate_by_exit_code(self) -> Rate:
        """Return the rate according to exit codes alone."""
        believed = sum(
            any(one.by_exit_code for one in result.tries) or result.passed
            for result in self.counted
        )
        return Rate(successes=believed, trials=len(self.counted))

    @property
    def languages(self) -> dict[Language, tuple[Result, ...]]:
        found: dict[Language, tuple[Result, ...]] = {
            language: tuple(one for one in self.results if one.language == language)
            for language in LANGUAGES
        }
        return {language: results for language, results in found.items() if results}

    @property
    def curve(self) -> list[float]:
        """Return the rate after one attempt, two, and so on; attempts are proposals."""
        needed = [result.attempts for result in self.counted if result.passed]
        most = max((result.attempts for result in self.counted), default=0)
        total = len(self.counted) or 1
        return [sum(n <= step for n in needed) / total for step in range(1, most + 1)]

    @property
    def usage(self) -> Usage:
        return sum((result.usage for result in self.counted), Usage())

    @property
    def disagreements(self) -> tuple[Result, ...]:
        """Return the results in which tests passed and the verifier rejected, or the reverse."""
        return tuple(
            result
            for result in self.counted
            if any(one.by_exit_code != one.passed for one in result.tries)
        )

    @property
    def unsteady(self) -> tuple[str, ...]:
        """Return the exercises that were solved in some repeats and not in others."""
        seen: dict[str, set[bool]] = {}
        for result in self.counted:
            seen.setdefault(result.exercise, set()).add(result.passed)
        return tuple(name for name, outcomes in seen.items() if len(outcomes) > 1)

    def count(self, status: Status) -> int:
        return sum(result.status is status for result in self.results)

    def total(self, of: Callable[[Result], float]) -> float:
        return sum(of(result) for result in self.counted)


def rate_of(results: Iterable[Result]) -> Rate:
    """Return the rate over those results that ran."""
    counted = [result for result in results if result.counted]
    return Rate(successes=sum(result.passed for result in counted), trials=len(counted))


def read_summary(folder: Path) -> Summary:
    """Read the folder of a run.

    Raises:
        UsageError: If it has none.
        JournalError: If a line of it is damaged.
    """
    return Summary(
        folder=folder,
        asked=read_run(folder),
        environment=_json(folder / ENVIRONMENT),
        validation=_json(folder / VALIDATION),
        results=read_results(folder),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs on their common exercises."""

    before: Summary
    after: Summary
    gained: tuple[str, ...]
    """Solved by the second run only."""
    lost: tuple[str, ...]
    """Solved by the first run only."""
    both: int
    neither: int
    left_out: int
    """Results that only one run has, or that count in one run only."""

    @property
    def pairs(self) -> int:
        return len(self.gained) + len(self.lost) + self.both + self.neither

    @property
    def p_value(self) -> float:
        return mcnemar(len(self.gained), len(self.lost))

    @property
    def same_track(self) -> bool:
        return self.before.asked["track"] == self.after.asked["track"]

    @property
    def rates(self) -> tuple[Rate, Rate]:
        first = Rate(successes=self.both + len(self.lost), trials=self.pairs)
        second = Rate(successes=self.both + len(self.gained), trials=self.pairs)
        return first, second

    def fields(self) -> dict[str, Any]:
        """Return all values for JSON output."""
        names = ("suite", "model", "track", "tries", "attempts")
        runs = [
            {
                **{name: summary.asked[name] for name in names},
                "solved": rate.successes,
                "interval": rate.interval,
            }
            for summary, rate in zip((self.before, self.after), self.rates, strict=True)
        ]
        return {
            "a": runs[0],
            "b": runs[1],
            "pairs": self.pairs,
            "gained": list(self.gained),
            "lost": list(self.lost),
            "both": self.both,
            "neither": self.neither,
            "left_out": self.left_out,
            "p_value": self.p_value,
            "same_track": self.same_track,
        }


def compare(before: Summary, after: Summary) -> Comparison:
    """Compare two runs, result by result.

    Raises:
        UsageError: If their suites differ, or they have no exercise in common.
    """
    if before.asked["suite"] != after.asked["suite"]:
        raise UsageError(
            f"{before.asked['suite']!r} and {after.asked['suite']!r} are different suites",
            hint="compare runs on the same exercises",
        )
    first, second = (
        {
            result.exercise if summary.asked["repeat"] == 1 else result.key: result
            for result in summary.counted
        }
        for summary in (before, after)
    )
    common = sorted(first.keys() & second.keys())
    if not common:
        raise UsageError("the two runs have no exercise in common")
    return Comparison(
        before=before,
        after=after,
        gained=tuple(k for k in common if second[k].passed and not first[k].passed),
        lost=tuple(k for k in common if first[k].passed and not second[k].passed),
        both=sum(first[k].passed and second[k].passed for k in common),
        neither=sum(not first[k].passed and not second[k].passed for k in common),
        left_out=len(first.keys() ^ second.keys()),
    )
