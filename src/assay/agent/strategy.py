"""What to try next: samples for small models, repair for strong ones, and never the same twice.

Pure. Small local models do not get better by being told what is wrong at temperature 0, and do by
being asked again; strong ones repair most in the first two rounds and then lose the thread, so
that a fresh context with a short list of what was tried beats a third repair.
"""

from typing import Final

from assay.agent.state import Attempt, NextAction
from assay.contracts.events import ActionKind
from assay.contracts.goal import RunLimits

_SMALL: Final[tuple[ActionKind, ...]] = ("sample", "sample", "repair", "hinted", "repair", "sample")
"""The round that small models go through; the very first sample of all is the likeliest reply."""
_WARM: Final = 0.8
_REPAIR_WARM: Final = 0.6
_STUCK: Final = 2


def first_step(*, small: bool) -> NextAction:
    """Say how to begin."""
    return NextAction(move="sample", temperature=0.0 if small else None)


def next_step(
    attempts: tuple[Attempt, ...],
    best: int,
    effort: RunLimits,
    *,
    small: bool,
    partners: tuple[int, ...] = (),
) -> NextAction:
    """Say how to go on after these attempts, of which none was accepted.

    `partners` are attempts that the best one could be put together with.
    """
    if small:
        return _next_of_small(attempts, best, partners)
    if _stuck(attempts) or _repairs_in_a_row(attempts) >= effort.repairs:
        return NextAction(move="fresh", temperature=_WARM if _stuck(attempts) else None, base=best)
    last = attempts[-1]
    if last.number != best and best:
        # What the last one broke is told; the state before it is what is worked on.
        return NextAction(move="repair", temperature=None, base=best)
    return NextAction(move="repair", temperature=None, base=last.number)


def _next_of_small(
    attempts: tuple[Attempt, ...], best: int, partners: tuple[int, ...]
) -> NextAction:
    if partners:
        return NextAction(move="combine", temperature=None, base=best, other=partners[0])
    asked = sum(attempt.move != "combine" for attempt in attempts)
    planned = _SMALL[asked % len(_SMALL)]
    if planned == "sample" or not best:
        return NextAction(move="sample", temperature=_WARM)
    warmth = _REPAIR_WARM if planned == "repair" else _WARM
    return NextAction(move=planned, temperature=warmth, base=best)


def complements(attempts: tuple[Attempt, ...], best: int) -> tuple[int, ...]:
    """Return the attempts that pass what the best one fails, those that add most first."""
    leader = next((attempt for attempt in attempts if attempt.number == best), None)
    if leader is None or leader.all_passed:
        return ()
    tried = {(a.base, a.other) for a in attempts if a.move == "combine"}
    gains = {
        attempt.number: len(attempt.passed - leader.passed)
        for attempt in attempts
        if not attempt.tampered and (best, attempt.number) not in tried
    }
    useful = [number for number, gain in gains.items() if gain]
    return tuple(sorted(useful, key=lambda number: -gains[number]))


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
