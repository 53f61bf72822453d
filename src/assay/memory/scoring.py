"""How much a lesson is worth: what its record of help and harm proves, not what it promises."""

import math
from typing import Final

_Z: Final = 1.96
"""Two-sided 95 %."""
_ENOUGH: Final = 4
"""Judgements before a lesson can be called harmful: fewer prove nothing either way."""
_UNJUDGED: Final = 0.2
"""What a lesson counts for that was never judged: about as much as one that helped once. With
nothing it would never be shown, and so never be judged."""


def wilson_bounds(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a rate; of no trials, everything."""
    if trials <= 0:
        return 0.0, 1.0
    rate = successes / trials
    centre = rate + _Z**2 / (2 * trials)
    spread = _Z * math.sqrt(rate * (1 - rate) / trials + _Z**2 / (4 * trials**2))
    scale = 1 + _Z**2 / trials
    # Exact at both ends, where rounding would leave a trace of doubt.
    low = 0.0 if successes == 0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if successes == trials else min(1.0, (centre + spread) / scale)
    return low, high


def score(helped: int, harmed: int) -> float:
    """Return the least that a lesson may be expected to help, between 0 and 1."""
    if helped + harmed == 0:
        return _UNJUDGED
    return wilson_bounds(helped, helped + harmed)[0]


def is_harmful(helped: int, harmed: int) -> bool:
    """Whether it is as good as certain that a lesson harms more often than it helps."""
    judged = helped + harmed
    return judged >= _ENOUGH and wilson_bounds(helped, judged)[1] < 0.5  # noqa: PLR2004 - a half
