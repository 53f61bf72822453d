"""What the evidence means: skips that were asked for, tests that ask nothing, and lies."""

from pathlib import PurePosixPath

import pytest

from assay.contracts.verdict import CheckReport, Severity, TamperKind, TestResult, TestStatus
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.inverted_tests import RewrittenTests
from assay.verify.runners.python import PythonRun
from assay.verify.spec import Observation, VerificationSpec
from assay.verify.verdicts import check_inverted_tests, skipped_tests


def report(*tests: TestResult) -> CheckReport:
    return CheckReport(command="check", runner="any", passed=True, tests=tests)


def a_test(name: str, status: TestStatus = TestStatus.PASSED, message: str = "") -> TestResult:
    return TestResult(id=name, status=status, message=message)


SKIPS = (
    ("calc_test.go", 't.Skip("later")', "calc::TestLater", ""),
    ("src/lib.rs", "#[ignore]\nfn later() {}", "tests::later", ""),
    ("calc_test.cpp", "TEST(Calc, DISABLED_Later) {}", "Calc.DISABLED_Later", ""),
    ("calc.test.js", "test.todo('later')", "calc.test.js > later", ""),
    ("calc.test.js", "xdescribe('all', () => {})", "calc.test.js > all > later", ""),
    ("test_calc.py", "@unittest.expectedFailure", "test_calc.Calc.test_later", ""),
    ("test_calc.py", "pytest.importorskip('x')", "test_calc.py", "test_calc.py:1: no x"),
)


@pytest.mark.parametrize(("path", "text", "name", "message"), SKIPS)
@pytest.mark.parametrize("asked", [True, False])
def test_a_skip_is_a_forgery_unless_the_tests_ask_for_it(
    *, path: str, text: str, name: str, message: str, asked: bool
) -> None:
    content = text if asked else "nothing of the kind"
    file = PurePosixPath(path)
    case = VerificationSpec(
        pristine=Tree(files={file: TreeFile(content.encode())}),
        checks=("check",),
        protected=(file,),
    )

    skipped = a_test(name, TestStatus.SKIPPED, message)
    (finding,) = skipped_tests(case, case.pristine, report(skipped))

    assert finding.kind is TamperKind.TESTS_SKIPPED
    assert finding.severity == ("doubt" if asked else "forgery")


def test_a_skip_that_comes_from_the_solution_is_not_excused_by_the_tests() -> None:
    tests, solution = PurePosixPath("test_calc.py"), PurePosixPath("calc.py")
    files = {tests: TreeFile(b"pytest.skip"), solution: TreeFile(b"def add(): ...")}
    case = VerificationSpec(pristine=Tree(files=files), checks=("check",), protected=(tests,))
    skipped = a_test("test_calc.py::test_add", TestStatus.SKIPPED, "calc.py:3: later")

    (finding,) = skipped_tests(case, case.pristine, report(skipped))

    assert finding.severity == "forgery"


@pytest.mark.parametrize("changed", [True, False])
def test_a_file_that_does_not_judge_excuses_a_skip_only_as_it_was(*, changed: bool) -> None:
    tests, helper = PurePosixPath("test_calc.py"), PurePosixPath("calc.py")
    files = {tests: TreeFile(b"from calc import add"), helper: TreeFile(b"def needs(): skip()")}
    case = VerificationSpec(pristine=Tree(files=files), checks=("check",), protected=(tests,))
    tree = case.pristine.with_files({helper: TreeFile(b"raise skip")} if changed else {})
    skipped = a_test("test_calc.py::test_add", TestStatus.SKIPPED, "calc.py:3: later")

    (finding,) = skipped_tests(case, tree, report(skipped))

    assert finding.severity == ("forgery" if changed else "doubt")


@pytest.mark.parametrize("more", ["", "#[test]\n#[ignore]\nfn more() {}\n"])
def test_tests_beside_the_code_excuse_no_more_skips_than_before(more: str) -> None:
    path, text = PurePosixPath("src/lib.rs"), "#[test]\n#[ignore]\nfn later() {}\n"
    case = VerificationSpec(
        pristine=Tree(files={path: TreeFile(text.encode())}), checks=("c",), protected=()
    )
    tree = Tree(files={path: TreeFile(f"fn new() {{}}\n{text}{more}".encode())})
    skipped = a_test("src/lib.rs::later", TestStatus.SKIPPED)

    (finding,) = skipped_tests(case, tree, report(skipped))

    assert finding.severity == ("forgery" if more else "doubt")


@pytest.mark.parametrize(
    "text", ["# TODO: more", "raise SystemExit", "except ValueError:  # ignored", "mixit(1)"]
)
def test_a_word_that_only_looks_like_it_excuses_no_skip(text: str) -> None:
    path = PurePosixPath("test_calc.py")
    case = VerificationSpec(
        pristine=Tree(files={path: TreeFile(text.encode())}), checks=("c",), protected=(path,)
    )

    (finding,) = skipped_tests(
        case, case.pristine, report(a_test("test_calc.Calc.test_add", TestStatus.SKIPPED))
    )

    assert finding.severity == "forgery"


def turned(
    *,
    passed: bool,
    constants: str = "",
    unsure: str = "",
    reached: str = "1",
    within: str = "",
    steady: bool = True,
) -> list[tuple[TamperKind, Severity]]:
    """Judge one test that passed, by how it ended when it was turned around."""
    first = report(a_test("t.py::test_it"))
    status = TestStatus.PASSED if passed else TestStatus.FAILED
    numbers = {"t.py::test_it": frozenset(reached)}
    repeated = TestStatus.PASSED if steady else TestStatus.FAILED
    same = PythonRun(
        observation=Observation(report=report(a_test("t.py::test_it", repeated))),
        reached=numbers,
        complete=True,
    )
    again = PythonRun(
        observation=Observation(report=report(a_test("t.py::test_it", status))),
        reached=numbers,
        complete=True,
    )
    tests = RewrittenTests(
        same={},
        turned={},
        constants=frozenset(constants),
        unsure=frozenset(unsure),
        within={"test_it": frozenset(within)},
    )
    return [(f.kind, f.severity) for f in check_inverted_tests(first, same, again, tests)]


def test_a_turned_test_that_passes_is_named_by_what_was_turned() -> None:
    assert turned(passed=False) == []
    assert turned(passed=True) == [(TamperKind.PATCHED_RUNNER, "forgery")]
    assert turned(passed=True, constants="1") == [(TamperKind.READS_TESTS, "forgery")]


def test_a_test_that_depends_on_its_own_text_is_no_forgery_when_inverted() -> None:
    # `compare_repetition` has a doubt about such a test.
    assert turned(passed=True, steady=False) == []


def test_what_honest_code_could_pass_is_a_doubt_unless_more_was_asked() -> None:
    assert turned(passed=True, unsure="1") == [(TamperKind.READS_TESTS, "doubt")]
    assert turned(passed=True, unsure="1", reached="12") == [(TamperKind.PATCHED_RUNNER, "forgery")]


def test_a_test_that_comes_to_none_of_its_assertions_is_a_doubt() -> None:
    assert turned(passed=True, reached="", within="1") == [(TamperKind.TESTS_SKIPPED, "doubt")]
    # Without any, there is nothing to come to; that nothing was asserted at all is another doubt.
    assert turned(passed=True, reached="") == [(TamperKind.PATCHED_RUNNER, "doubt")]
