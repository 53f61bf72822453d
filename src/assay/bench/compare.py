"""Comparison of two runs on the same exercises: changed results, and their significance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.bench.reports import rate_cells, table
from assay.bench.store import Result
from assay.bench.summary import Rate, Summary, mcnemar
from assay.contracts.errors import UsageError


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
    def rates(self) -> tuple[Rate, Rate]:
        first = Rate(successes=self.both + len(self.lost), trials=self.pairs)
        second = Rate(successes=self.both + len(self.gained), trials=self.pairs)
        return first, second

    def fields(self) -> dict[str, Any]:
        """Return all values for JSON output."""
        first, second = self.rates
        return {
            "a": {**_asked(self.before), "solved": first.successes, "interval": first.interval},
            "b": {**_asked(self.after), "solved": second.successes, "interval": second.interval},
            "pairs": self.pairs,
            "gained": list(self.gained),
            "lost": list(self.lost),
            "both": self.both,
            "neither": self.neither,
            "left_out": self.left_out,
            "p_value": self.p_value,
            "same_track": self.before.asked["track"] == self.after.asked["track"],
        }

    def as_markdown(self) -> str:
        """Return the comparison as Markdown."""
        rates = self.rates
        rows: list[Sequence[str]] = [
            (name, *_words(summary), *rate_cells(rate))
            for name, summary, rate in zip(
                ("A", "B"), (self.before, self.after), rates, strict=True
            )
        ]
        parts = [
            table(("", "model", "track", "solved", "rate", "95 % interval"), rows),
            (
                f"B solved {len(self.gained)} that A did not, and A {len(self.lost)} that B did "
                f"not (both {self.both}, neither {self.neither}). If the two were equally good, a "
                f"split as uneven as this would have a chance of {self.p_value:.3g} (McNemar, "
                "exact)."
            ),
        ]
        if self.before.asked["track"] != self.after.asked["track"]:
            parts.append("The tracks differ: this compares two ways of working, not two models.")
        if self.left_out:
            parts.append(f"{self.left_out} results have no counterpart and are left out.")
        flips = [*((name, "B only") for name in self.gained), *((n, "A only") for n in self.lost)]
        if flips:
            parts.append(table(("flipped", "solved by"), sorted(flips)))
        return "\n\n".join(parts) + "\n"


def _asked(summary: Summary) -> dict[str, Any]:
    return {name: summary.asked[name] for name in ("suite", "model", "track", "tries", "attempts")}


def _words(summary: Summary) -> tuple[str, str]:
    return summary.asked["model"], summary.asked["track"]


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
    first, second = _by_key(before), _by_key(after)
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


def _by_key(summary: Summary) -> dict[str, Result]:
    single = summary.asked["repeat"] == 1
    return {result.exercise if single else result.key: result for result in summary.counted}
