from dataclasses import replace

from assay.agent.strategy import better, row_of, statuses_of
from assay.contracts.verdict import CheckReport, Finding, TamperKind, TestStatus
from tests.support.attempts import a_report, an_attempt

FORGED = Finding(kind=TamperKind.EARLY_EXIT, severity="forgery", explanation="it left early")


def test_more_passed_tests_are_better() -> None:
    assert better(an_attempt(2, passed="ab", failed="c"), an_attempt(1, passed="a", failed="bc"))


def test_as_many_passed_tests_are_not_better() -> None:
    assert not better(an_attempt(2, passed="b", failed="a"), an_attempt(1, passed="a", failed="b"))


def test_the_first_that_ran_is_better_than_none() -> None:
    assert better(an_attempt(1, failed="a"), None)


def test_what_never_ran_is_not_better_than_none() -> None:
    assert not better(an_attempt(1), None)


def test_what_never_ran_is_not_better_than_what_failed_everything() -> None:
    assert not better(an_attempt(2), an_attempt(1, failed="ab"))


def test_to_run_no_test_is_not_better_than_to_fail_them() -> None:
    without_tests = replace(an_attempt(2), reports=(replace(a_report({}), passed=False),))

    assert not better(without_tests, an_attempt(1, failed="ab"))
    assert better(an_attempt(1, failed="ab"), without_tests)


def test_a_forged_attempt_is_never_the_best() -> None:
    forged = replace(an_attempt(2, passed="abc"), found=(FORGED,))

    assert not better(forged, an_attempt(1, passed="a", failed="bc"))
    assert not better(forged, None)


def test_a_command_without_tests_counts_as_one() -> None:
    report = CheckReport(command="make check", runner="command", passed=False)

    assert row_of(3, (report,)).statuses == {"make check": TestStatus.FAILED}


def test_no_attempt_has_no_statuses() -> None:
    assert statuses_of(None) == {}
