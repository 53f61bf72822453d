"""What an independent check says of a proposal, and by what evidence."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final, Literal


class Grade(StrEnum):
    """How much an acceptance is worth, from least to most. Never inflated."""

    RAN = "ran"
    """It was executed, ended well, and the model judged the output against the goal."""
    CHECKED = "checked"
    """Checks that failed on the untouched tree pass: the agent wrote them, or only their exit code
    is known."""
    PROVEN = "proven"
    """The person's own tests pass, and forging that would have been seen."""

    @property
    def rank(self) -> int:
        return list(Grade).index(self)


class TestStatus(StrEnum):
    """How one test ended."""

    __test__ = False  # Not a class of tests, whatever pytest thinks of its name.

    PASSED = "passed"
    FAILED = "failed"
    """An assertion did not hold."""
    ERROR = "error"
    """It could not be carried out: no import, no fixture, a crash."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """One test of one check."""

    __test__ = False

    id: str
    """As its runner names it: `tests/test_a.py::test_b[1]`, `TestSuite/case`, `module::name`."""
    status: TestStatus
    message: str = ""
    """One line: what went wrong."""
    detail: str = ""
    """The runner's own account of it, trimmed."""

    @property
    def passed(self) -> bool:
        return self.status is TestStatus.PASSED


class TamperKind(StrEnum):
    """A way to look accepted without being right."""

    EARLY_EXIT = "early_exit"
    """The process of the tests ended before it reported: `os._exit`, `sys.exit` on import."""
    RUNNER_CONFIG = "runner_config"
    """Configuration of the test runner was added or changed: conftest.py, pytest.ini, addopts."""
    PATCHED_RUNNER = "patched_runner"
    """Tests that must fail passed: the runner, unittest, pytest or `assert` were tampered with."""
    TESTS_CHANGED = "tests_changed"
    TESTS_DELETED = "tests_deleted"
    TESTS_SKIPPED = "tests_skipped"
    TESTS_MISSING = "tests_missing"
    """Tests that are in the files were not reported."""
    SHADOWED_RUNNER = "shadowed_runner"
    """A file named like the runner or the standard library stood in its way."""
    STARTUP_HOOK = "startup_hook"
    """`sitecustomize.py`, `usercustomize.py`, a `.pth` file: code that runs before the tests."""
    LINKED_FILE = "linked_file"
    """A link stands where a file must be."""
    FORGED_REPORT = "forged_report"
    """A report that the runner did not write."""
    CHANGED_WHILE_TESTED = "changed_while_tested"
    """Files of the workspace were rewritten during the check, or something was left to do so."""
    DETECTS_VERIFIER = "detects_verifier"
    """It looks whether it is being tested: environment, loaded modules, stack, time."""
    READS_TESTS = "reads_tests"
    """Its answers come from the tests themselves."""
    HIDDEN_CODE = "hidden_code"
    """What it runs is built at run time and cannot be read."""
    NOT_ALLOWED = "not_allowed"
    """No trick: a file outside of what may be changed, which is left out."""
    NO_CHANGE = "no_change"
    """No trick: every file is as it was, so there is nothing to accept."""
    NOT_EXECUTED = "not_executed"
    """No trick: changed files that the tests did not run."""
    PASSED_BEFORE = "passed_before"
    """No trick: the checks passed on the untouched files as well."""
    UNSTABLE = "unstable"
    """The same tests ended differently when run again under other conditions."""


_PARTS: Final = re.compile("::")

Severity = Literal["forgery", "rejected", "doubt", "note"]
"""`forgery` and `rejected`: not accepted, with and without an accusation. `doubt`: cannot be
`proven`. `note`: left out and told, no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing about a proposal that a person should know."""

    trick: TamperKind
    severity: Severity
    explanation: str
    """One sentence, with the names in it."""
    path: PurePosixPath | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """One check, run once."""

    command: str
    runner: str
    """`pytest`, `unittest`, `node`, `jest`, `cargo`, `go`, `ctest`, `junit` or `command`."""
    passed: bool
    tests: tuple[TestResult, ...] = ()
    """Empty for a command that is known by its exit code alone."""
    exit_code: int | None = None
    explanation: str = ""
    """Why it did not pass, in one line; empty when it did."""
    output: str = ""
    """What the program printed, trimmed to head and tail."""
    canaries_planted: int = 0
    """Tests that had to fail."""
    canaries_caught: int = 0
    """Those of them that did."""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Accepted or not, with the evidence."""

    accepted: bool
    grade: Grade | None
    """None unless accepted."""
    reason: str
    """One line."""
    tree: str
    """Digest of what was judged: the untouched tree with the allowed changes in it."""
    reports: tuple[CheckReport, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def tests(self) -> tuple[TestResult, ...]:
        return tuple(test for report in self.reports for test in report.tests)

    @property
    def tampered(self) -> bool:
        return any(finding.severity == "forgery" for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestMatrixRow:
    """How the tests ended in one attempt."""

    __test__ = False

    attempt: int
    statuses: Mapping[str, TestStatus] = field(default_factory=dict[str, TestStatus])
    checks: tuple[str, ...] = ()
    """Those of the names that are commands: checks that reported no test."""

    @property
    def passed(self) -> frozenset[str]:
        return frozenset(
            test for test, status in self.statuses.items() if status == TestStatus.PASSED
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TestMatrix:
    """Tests over attempts: shows what was gained and what was lost again."""

    __test__ = False

    rows: tuple[TestMatrixRow, ...] = ()

    def with_row(self, row: TestMatrixRow) -> "TestMatrix":
        return TestMatrix(rows=(*self.rows, row))

    @property
    def tests(self) -> tuple[str, ...]:
        """All test ids, in the order in which they were first seen."""
        return tuple(dict.fromkeys(test for row in self.rows for test in row.statuses))

    @property
    def counted(self) -> tuple[str, ...]:
        """What is counted as one test each, everywhere.

        A file that could not be imported is none where its tests are known, nor is a check whose
        tests are.
        """
        above = {test[: mark.start()] for test in self.tests for mark in _PARTS.finditer(test)}
        checks = {check for row in self.rows for check in row.checks}
        tests = tuple(test for test in self.tests if test not in checks and test not in above)
        return tests or self.tests

    @property
    def noun(self) -> str:
        """What the counted are: tests, or checks that are known by their exit code alone."""
        checks = {check for row in self.rows for check in row.checks}
        return "check" if checks.issuperset(self.counted) else "test"
