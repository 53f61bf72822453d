"""What the checks say about the change, by the facts that a run reports."""

from pathlib import PurePosixPath

from assay.contracts.verdict import CheckReport, Severity, TamperKind, TestStatus
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.report_checks import a_test
from assay.verify.spec import Execution, Observation, VerificationSpec
from assay.verify.verdicts import (
    changed_python,
    not_executed,
    nothing_changed,
    removed_python,
    says_nothing_new,
)

A, B = PurePosixPath("src/pkg/a.py"), PurePosixPath("src/pkg/b.py")
BEFORE = Tree(files={A: TreeFile(b"x = 1\n"), PurePosixPath("test_a.py"): TreeFile(b"")})
CASE = VerificationSpec(
    pristine=BEFORE, checks=("pytest",), protected=(PurePosixPath("test_a.py"),)
)


def report(*tests: tuple[str, TestStatus], passed: bool = True) -> CheckReport:
    results = tuple(a_test(name, status) for name, status in tests)
    return CheckReport(command="pytest", runner="pytest", passed=passed, tests=results)


def observed(execution: Execution | None) -> Observation:
    return Observation(report=report(("t", TestStatus.PASSED)), execution=execution)


def judged(execution: Execution | None) -> list[tuple[TamperKind, Severity]]:
    found = not_executed((A, B), (), [observed(execution)])
    return [(finding.kind, finding.severity) for finding in found]


def test_a_proposal_that_changes_nothing_is_rejected() -> None:
    (finding,) = nothing_changed(CASE, BEFORE)

    assert (finding.kind, finding.severity) == (TamperKind.NO_CHANGE, "rejected")
    assert not nothing_changed(CASE, BEFORE.with_files({A: TreeFile(b"x = 2\n")}))


def test_only_python_files_with_code_that_are_no_tests_have_to_run() -> None:
    added = {
        B: TreeFile(b"y = 1\n"),
        PurePosixPath("src/pkg/__init__.py"): TreeFile(b"\n"),
        PurePosixPath("tests/test_b.py"): TreeFile(b"def test_b(): pass\n"),
        PurePosixPath("notes.md"): TreeFile(b"text\n"),
    }

    assert changed_python(CASE, BEFORE.with_files(added)) == (B,)


def test_files_that_no_test_runs_reject_or_lower_the_grade() -> None:
    assert judged(Execution(files=(A, B))) == []
    assert judged(Execution(files=(A,))) == [(TamperKind.NOT_EXECUTED, "doubt")]
    assert judged(Execution(files=())) == [(TamperKind.NOT_EXECUTED, "rejected")]
    assert judged(Execution(files=(), has_children=True)) == [(TamperKind.NOT_EXECUTED, "doubt")]
    assert judged(None) == []


def test_a_removed_file_counts_if_another_copy_takes_its_place() -> None:
    def found(execution: Execution) -> list[Severity]:
        return [one.severity for one in not_executed((A,), (B,), [observed(execution)])]

    elsewhere = (("pkg", "/usr/lib/pkg/__init__.py"),)
    assert found(Execution(files=(A,))) == []
    assert found(Execution(files=(A,), replaced=(B,), elsewhere=elsewhere)) == ["doubt"]
    assert found(Execution(files=(A,), replaced=(A, B), elsewhere=elsewhere)) == ["rejected"]


def test_programs_of_the_tests_may_run_another_copy_of_a_removed_file() -> None:
    (finding,) = not_executed((), (B,), [observed(Execution(files=(), has_children=True))])

    assert finding.severity == "doubt"
    assert "the tests may run another copy: src/pkg/b.py" in finding.explanation
    assert not_executed((), (B,), [observed(Execution(files=()))]) == ()
    assert not_executed((), (B,), [observed(None)]) == ()


def test_a_file_is_removed_by_deleting_or_emptying_it() -> None:
    init = PurePosixPath("src/pkg/__init__.py")
    emptied = BEFORE.with_files({A: TreeFile(b"\n"), init: TreeFile(b"")})

    assert removed_python(CASE, BEFORE.without([A])) == (A,)
    assert removed_python(CASE, emptied) == (A,)


def test_a_rejection_names_the_copy_that_the_tests_import() -> None:
    elsewhere = (("pkg", "/usr/lib/python3/site-packages/pkg/__init__.py"),)
    run = Execution(files=(), elsewhere=elsewhere, has_children=True)

    (finding,) = not_executed((A,), (), [observed(run)])

    assert finding.severity == "rejected"
    assert "they import `pkg` from /usr/lib/python3/site-packages/pkg/" in finding.explanation


def test_a_check_says_something_if_a_test_passes_that_did_not_before() -> None:
    good, bad = TestStatus.PASSED, TestStatus.FAILED
    after = report(("a", good), ("b", good))

    assert says_nothing_new(report(("a", good), ("b", good)), after)
    assert not says_nothing_new(report(("a", good), ("b", bad), passed=False), after)
    assert not says_nothing_new(report(passed=False), after)
    assert says_nothing_new(report(), report())
    assert not says_nothing_new(report(passed=False), report())
