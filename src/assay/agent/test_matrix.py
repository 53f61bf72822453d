"""The results of tests by attempt: the best attempt, and gains and losses between attempts."""

from collections.abc import Mapping
from dataclasses import dataclass

from assay.agent.state import Attempt
from assay.contracts.verdict import CheckReport, TestMatrixRow, TestStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The difference in passed tests between two attempts."""

    fixed: frozenset[str]
    broke: frozenset[str]


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


def gain(before: Attempt, after: Attempt) -> Gain:
    """Compare the passed tests of two attempts."""
    return Gain(fixed=after.passed - before.passed, broke=before.passed - after.passed)


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
