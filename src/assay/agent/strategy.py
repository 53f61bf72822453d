"""Select the next action: samples for small models, repairs for large ones, no repetitions.

Attempts are compared by their test results: the best attempt, and gains and losses between two.
"""

from collections.abc import Mapping
from typing import Final

from assay.agent.state import Attempt, NextAction
from assay.contracts.events import ActionKind
from assay.contracts.goal import RunLimits
from assay.contracts.verdict import CheckReport, TestMatrixRow, TestStatus

_SMALL: Final[tuple[ActionKind, ...]] = ("sample", "sample", "repair", "hinted", "repair", "sample")
"""The cycle for small models, after a first sample, which is the most likely reply."""
_WARM: Final = 0.8
_REPAIR_WARM: Final = 0.6
_STUCK: Final = 2


def first_step(*, small: bool) -> NextAction:
    """Return the first action."""
    return NextAction(action="sample", temperature=0.0 if small else None)


def next_step(
    attempts: tuple[Attempt, ...],
    best: int,
    limits: RunLimits,
    *,
    small: bool,
    partners: tuple[int, ...] = (),
) -> NextAction:
    """Return the next action after these attempts, none of which was accepted.

    `partners` are attempts that can be combined with the best one.
    """
    if small:
        return _next_of_small(attempts, best, partners)
    if _stuck(attempts) or _repairs_in_a_row(attempts) >= limits.repairs:
        return NextAction(
            action="fresh", temperature=_WARM if _stuck(attempts) else None, base=best
        )
    last = attempts[-1]
    if last.number != best and best:
        # The feedback lists what the last attempt broke; the repair starts from the best one.
        return NextAction(action="repair", temperature=None, base=best)
    return NextAction(action="repair", temperature=None, base=last.number)


def _next_of_small(
    attempts: tuple[Attempt, ...], best: int, partners: tuple[int, ...]
) -> NextAction:
    if partners:
        return NextAction(action="combine", temperature=None, base=best, other=partners[0])
    asked = sum(attempt.action != "combine" for attempt in attempts)
    planned = _SMALL[asked % len(_SMALL)]
    if planned == "sample" or not best:
        return NextAction(action="sample", temperature=_WARM)
    warmth = _REPAIR_WARM if planned == "repair" else _WARM
    return NextAction(action=planned, temperature=warmth, base=best)


def complements(attempts: tuple[Attempt, ...], best: int) -> tuple[int, ...]:
    """Return the attempts that pass tests which the best one fails, most additional tests first."""
    leader = next((attempt for attempt in attempts if attempt.number == best), None)
    if leader is None or leader.all_passed:
        return ()
    tried = {(a.base, a.other) for a in attempts if a.action == "combine"}
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
        if attempt.action != "repair":
            break
        count += 1
    return count


def _stuck(attempts: tuple[Attempt, ...]) -> bool:
    """Whether the last attempt repeats earlier files, or fails like the one before."""
    if len(attempts) < _STUCK:
        return False
    before, last = attempts[-2:]
    same_failures = bool(last.signatures) and last.signatures == before.signatures
    return bool(last.repeats) or (same_failures and last.passed == before.passed)


def repeats_without_progress(attempts: tuple[Attempt, ...], limits: RunLimits) -> bool:
    """Whether the last two rounds gave only attempts with the same files and the same failures."""
    recent = attempts[-2 * limits.best_of :]
    outcomes = {(each.tree, each.signatures, each.complaint) for each in recent}
    return len(recent) == 2 * limits.best_of and len(outcomes) == 1


def row_of(number: int, reports: tuple[CheckReport, ...]) -> TestMatrixRow:
    """Build one row of the test matrix; a check without tests counts as one test."""
    statuses: dict[str, TestStatus] = {}
    checks = tuple(report.command for report in reports if not report.tests)
    for report in reports:
        for test in report.tests:
            statuses[test.id] = test.status
        if not report.tests:
            status = TestStatus.PASSED if report.passed else TestStatus.FAILED
            statuses[report.command] = status
    return TestMatrixRow(attempt=number, statuses=statuses, checks=checks)


def better(one: Attempt, other: Attempt | None) -> bool:
    """Whether an attempt is better than the best so far: more tests passed, fewer failed.

    An attempt without results is not better. Fewer failures do not count if it ran no tests.
    """
    if not one.reports:
        return False
    if other is None:
        return not one.tampered
    return _rank(one) > _rank(other)


def _rank(attempt: Attempt) -> tuple[bool, bool, int, bool, int]:
    tests = [test for report in attempt.reports for test in report.tests]
    failing = sum(test.status in {TestStatus.FAILED, TestStatus.ERROR} for test in tests)
    passed = len(attempt.passed)
    return (not attempt.tampered, attempt.all_passed, passed, bool(tests), -failing)


def statuses_of(attempt: Attempt | None) -> Mapping[str, TestStatus]:
    """Return the test results of an attempt; empty if there is none."""
    return row_of(attempt.number, attempt.reports).statuses if attempt else {}
