"""Statistics: the confidence of a rate, and the significance of a difference."""

import math
from dataclasses import dataclass
from typing import Final

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
