"""Builders for attempts and what came of them."""

from collections.abc import Mapping

from assay.agent.state import Attempt
from assay.contracts.events import ActionKind
from assay.contracts.verdict import CheckReport, TestResult, TestStatus


def a_report(statuses: Mapping[str, TestStatus], command: str = "pytest") -> CheckReport:
    tests = tuple(TestResult(id=name, status=status) for name, status in statuses.items())
    passed = all(test.passed for test in tests)
    return CheckReport(command=command, runner="pytest", passed=passed, tests=tests)


def an_attempt(
    number: int,
    *,
    passed: str = "",
    failed: str = "",
    action: ActionKind = "sample",
    tree: str = "",
    signatures: tuple[str, ...] = (),
) -> Attempt:
    """Build an attempt whose tests, named by one letter each, ended so."""
    statuses = dict.fromkeys(passed, TestStatus.PASSED) | dict.fromkeys(failed, TestStatus.FAILED)
    return Attempt(
        number=number,
        action=action,
        tree=tree or f"tree {number}",
        reports=(a_report(statuses),) if statuses else (),
        signatures=signatures,
    )
