"""Score of a lesson from the record of its help and harm."""

import math
from typing import Final

_Z: Final = 1.96
"""Two-sided 95 %."""
_ENOUGH: Final = 4
"""Judgements before a lesson counts as harmful: fewer prove nothing."""
_UNJUDGED: Final = 0.2
"""The score of a lesson without judgements: about that of one that helped once. With zero, it would
never be shown and so never be judged."""


def wilson_bounds(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a rate; without trials, 0 to 1."""
    if trials <= 0:
        return 0.0, 1.0
    rate = successes / trials
    centre = rate + _Z**2 / (2 * trials)
    spread = _Z * math.sqrt(rate * (1 - rate) / trials + _Z**2 / (4 * trials**2))
    scale = 1 + _Z**2 / trials
    # Exact at both ends, despite rounding.
    low = 0.0 if successes == 0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if successes == trials else min(1.0, (centre + spread) / scale)
    return low, high


def score(helped: int, harmed: int) -> float:
    """Return the lower bound of a lesson's help rate, between 0 and 1."""
    if helped + harmed == 0:
        return _UNJUDGED
    return wilson_bounds(helped, helped + harmed)[0]


def is_harmful(helped: int, harmed: int) -> bool:
    """Return whether a lesson almost certainly harms more often than it helps."""
    judged = helped + harmed
    return judged >= _ENOUGH and wilson_bounds(helped, judged)[1] < 0.5  # noqa: PLR2004 - a half
