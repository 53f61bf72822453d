"""What to try next: samples for small models, repair for strong ones, and never the same twice.

Pure. Small local models do not get better by being told what is wrong at temperature 0, and do by
being asked again; strong ones repair most in the first two rounds and then lose the thread, so
that a fresh context with a short list of what was tried beats a third repair.
"""

from typing import Final

from assay.agent.state import Attempt, Step
from assay.contracts.goal import Effort

_SMALL: Final = ("sample", "sample", "sample", "repair")
"""The round that small models go through; the very first sample of all is the likeliest reply."""
_WARM: Final = 0.8
_REPAIR_WARM: Final = 0.5
_STUCK: Final = 2


def first_step(*, small: bool) -> Step:
    """Say how to begin."""
    return Step(move="sample", temperature=0.0 if small else None)


def next_step(attempts: tuple[Attempt, ...], best: int, effort: Effort, *, small: bool) -> Step:
    """Say how to go on after these attempts, of which none was accepted."""
    if small:
        return _next_of_small(attempts, best)
    if _stuck(attempts) or _repairs_in_a_row(attempts) >= effort.repairs:
        return Step(move="fresh", temperature=_WARM if _stuck(attempts) else None, base=best)
    last = attempts[-1]
    if last.number != best and best:
        # What the last one broke is told; the state before it is what is worked on.
        return Step(move="repair", temperature=None, base=best)
    return Step(move="repair", temperature=None, base=last.number)


def _next_of_small(attempts: tuple[Attempt, ...], best: int) -> Step:
    planned = _SMALL[len(attempts) % len(_SMALL)]
    base = best or attempts[-1].number
    seen = [attempt for attempt in attempts if attempt.number == base and attempt.reports]
    if planned == "repair" and seen:
        return Step(move="repair", temperature=_REPAIR_WARM, base=base)
    return Step(move="sample", temperature=_WARM)


def _repairs_in_a_row(attempts: tuple[Attempt, ...]) -> int:
    count = 0
    for attempt in reversed(attempts):
        if attempt.move != "repair":
            break
        count += 1
    return count


def _stuck(attempts: tuple[Attempt, ...]) -> bool:
    """Whether the last attempt was one that had been there, or failed just like the one before."""
    if len(attempts) < _STUCK:
        return False
    before, last = attempts[-2:]
    same_failures = bool(last.signatures) and last.signatures == before.signatures
    return bool(last.repeats) or (same_failures and last.passed == before.passed)
