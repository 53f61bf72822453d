"""Verdicts of the independent check, and the evidence behind them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final, Literal


class Grade(StrEnum):
    """The strength of an acceptance, from least to most."""

    RAN = "ran"
    """The program ran and exited normally, and the model judged its output against the goal."""
    CHECKED = "checked"
    """Checks that failed on the untouched tree pass: the agent wrote them, or only their exit code
    is known."""
    PROVEN = "proven"
    """The user's own tests pass, and the independent check would have detected a forgery."""

    @property
    def rank(self) -> int:
        return list(Grade).index(self)


class TestStatus(StrEnum):
    """Result of one test."""

    __test__ = False  # pytest must not collect this class as a test.

    PASSED = "passed"
    FAILED = "failed"
    """An assertion failed."""
    ERROR = "error"
    """The test could not run: no import, no fixture, a crash."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """One test of one check."""

    __test__ = False

    id: str
    """Name in its runner's form: `tests/test_a.py::test_b[1]`, `TestSuite/case`, `module::name`."""
    status: TestStatus
    message: str = ""
    """One line: the reason of a failure."""
    detail: str = ""
    """The runner's own failure report, truncated."""

    @property
    def passed(self) -> bool:
        return self.status is TestStatus.PASSED


class TamperKind(StrEnum):
    """A way for a change to look accepted without being right."""

    EARLY_EXIT = "early_exit"
    """The test process exited before it reported: `os._exit`, `sys.exit` on import."""
    RUNNER_CONFIG = "runner_config"
    """Configuration of the test runner was added or changed: conftest.py, pytest.ini, addopts."""
    PATCHED_RUNNER = "patched_runner"
    """Tests that must fail passed: the runner, unittest, pytest or `assert` were changed."""
    TESTS_CHANGED = "tests_changed"
    TESTS_DELETED = "tests_deleted"
    TESTS_SKIPPED = "tests_skipped"
    TESTS_MISSING = "tests_missing"
    """Tests in the files were not reported."""
    SHADOWED_RUNNER = "shadowed_runner"
    """A file shadowed the runner or the standard library by its name."""
    STARTUP_HOOK = "startup_hook"
    """`sitecustomize.py`, `usercustomize.py`, a `.pth` file: code that runs before the tests."""
    LINKED_FILE = "linked_file"
    """A link replaces a required file."""
    FORGED_REPORT = "forged_report"
    """A report that the runner did not write."""
    CHANGED_WHILE_TESTED = "changed_while_tested"
    """Files of the workspace were rewritten during the check, or a process was left to do so."""
    DETECTS_VERIFIER = "detects_verifier"
    """The code detects that it is tested: environment, loaded modules, stack, time."""
    READS_TESTS = "reads_tests"
    """The code takes its answers from the tests."""
    HIDDEN_CODE = "hidden_code"
    """The code builds what it runs at run time, so that it cannot be inspected."""
    NOT_ALLOWED = "not_allowed"
    """Not tampering: a file outside the allowed paths, which is left out."""
    NO_CHANGE = "no_change"
    """Not tampering: every file is unchanged, so there is nothing to accept."""
    NOT_EXECUTED = "not_executed"
    """Not tampering: changed files that the tests did not run."""
    PASSED_BEFORE = "passed_before"
    """Not tampering: the checks passed on the untouched files as well."""
    KNOWN_FAILURE = "known_failure"
    """Not tampering: tests that failed on the untouched files still fail in the same way."""
    UNSTABLE = "unstable"
    """The same tests gave different results when run again under other conditions."""


_PARTS: Final = re.compile("::")

Severity = Literal["forgery", "rejected", "doubt", "note"]
"""Severity of a finding. `forgery` and `rejected`: not accepted, with and without an accusation.
`doubt`: cannot be `proven`. `note`: excluded from the result, and only reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One remark about a change for the user."""

    kind: TamperKind
    severity: Severity
    explanation: str
    """One sentence, with the affected names."""
    path: PurePosixPath | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """One execution of one check."""

    command: str
    runner: str
    """`pytest`, `unittest`, `node`, `jest`, `cargo`, `go`, `ctest`, `junit` or `command`."""
    passed: bool
    tests: tuple[TestResult, ...] = ()
    """Empty for a command that has only an exit code."""
    exit_code: int | None = None
    explanation: str = ""
    """The reason of a failure, in one line; empty if the check passed."""
    output: str = ""
    """The program's output, truncated to head and tail."""
    canaries_planted: int = 0
    """Tests that had to fail."""
    canaries_caught: int = 0
    """The tests of these that did fail."""
    duration_s: float = 0.0
    known_failures: tuple[str, ...] = ()
    """IDs of tests that failed on the untouched files in the same way and do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Acceptance or rejection of one attempt, with the evidence."""

    accepted: bool
    grade: Grade | None
    """None unless accepted."""
    reason: str
    """One line."""
    tree: str
    """Digest of the verified tree: the untouched tree with the allowed changes."""
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
    """Test results of one attempt."""

    __test__ = False

    attempt: int
    statuses: Mapping[str, TestStatus] = field(default_factory=dict[str, TestStatus])
    checks: tuple[str, ...] = ()
    """The names among them that are commands: checks that reported no test."""

    @property
    def passed(self) -> frozenset[str]:
        return frozenset(
            test for test, status in self.statuses.items() if status == TestStatus.PASSED
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TestMatrix:
    """Test results by attempt: shows which tests were fixed and which regressed."""

    __test__ = False

    rows: tuple[TestMatrixRow, ...] = ()

    def with_row(self, row: TestMatrixRow) -> "TestMatrix":
        return TestMatrix(rows=(*self.rows, row))

    @property
    def tests(self) -> tuple[str, ...]:
        """All test ids, in the order of their first appearance."""
        return tuple(dict.fromkeys(test for row in self.rows for test in row.statuses))

    @property
    def counted(self) -> tuple[str, ...]:
        """Names that count as one test each, in every view.

        Leaves out a file that could not be imported if its tests are known, and a check if its
        tests are known.
        """
        above = {test[: mark.start()] for test in self.tests for mark in _PARTS.finditer(test)}
        checks = {check for row in self.rows for check in row.checks}
        tests = tuple(test for test in self.tests if test not in checks and test not in above)
        return tests or self.tests

    @property
    def noun(self) -> str:
        """Noun for what is counted: tests, or checks that have only an exit code."""
        checks = {check for row in self.rows for check in row.checks}
        return "check" if checks.issuperset(self.counted) else "test"
