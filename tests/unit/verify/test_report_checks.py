from pathlib import PurePosixPath

import pytest

from assay.contracts.execution import ExecutionResult, OutputChunk, Program, Reason
from assay.contracts.verdict import TamperKind, TestResult, TestStatus
from assay.verify.report_checks import RawReport, ReportCapture, a_test, check_reports
from assay.verify.runner import Planted, planted
from assay.verify.runners.registry import ExitCodeRunner
from assay.verify.spec import CheckSpec, Observation, forgery
from tests.doubles.fake_sandbox import FakeSandbox, answer_with

CHECK = CheckSpec(command="x", argv=("x",), canaries=True)
CANARIES = frozenset({"keeps_1", "keeps_2"})
CAUGHT = (
    a_test("f > keeps_1", TestStatus.FAILED),
    a_test("f > keeps_2", TestStatus.ERROR),
)


def passing(name: str) -> TestResult:
    return a_test(name, TestStatus.PASSED)


def raw(
    *tests: TestResult,
    exit_code: int = 0,
    canaries: frozenset[str] = frozenset(),
    reason: Reason = Reason.COMPLETED,
    problem: str = "",
) -> RawReport:
    result = answer_with(exit_code=exit_code, reason=reason)
    return RawReport(result=result, tests=tests, canaries=canaries, problem=problem)


def judged(*reports: RawReport) -> Observation:
    return check_reports(CHECK, "x", reports)


def concluded(
    *tests: TestResult,
    exit_code: int = 0,
    canaries: frozenset[str] = frozenset(),
    reason: Reason = Reason.COMPLETED,
    problem: str = "",
) -> Observation:
    return judged(
        raw(*tests, exit_code=exit_code, canaries=canaries, reason=reason, problem=problem)
    )


def tricks(observation: Observation) -> list[tuple[TamperKind, str]]:
    return [(finding.kind, finding.severity) for finding in observation.findings]


def test_passed_tests_and_a_zero_pass() -> None:
    observation = concluded(passing("a"))

    assert observation.report.passed
    assert not observation.findings


def test_caught_canaries_are_not_among_the_tests() -> None:
    observation = concluded(passing("a"), *CAUGHT, exit_code=1, canaries=CANARIES)

    assert observation.report.passed
    assert [test.id for test in observation.report.tests] == ["a"]
    assert (observation.report.canaries_caught, observation.report.canaries_planted) == (2, 2)


@pytest.mark.parametrize(
    ("observation", "why"),
    [
        (concluded(), "no test was carried out"),
        (concluded(a_test("a", TestStatus.SKIPPED)), "all tests were skipped"),
        (concluded(passing("a"), exit_code=1), "every reported test passed, but it ended with"),
        (
            concluded(passing("a"), a_test("b", TestStatus.FAILED), exit_code=1),
            "1 of 2 tests failed",
        ),
        (concluded(passing("a"), reason=Reason.TIMED_OUT), "it did not end in time"),
        (concluded(passing("a"), problem="no report"), "no report"),
        (concluded(exit_code=127), "a program it needs is not in the sandbox"),
        (concluded(passing("a"), CAUGHT[0], exit_code=1, canaries=CANARIES), "must fail did not"),
    ],
)
def test_what_does_not_fit_together_does_not_pass(observation: Observation, why: str) -> None:
    assert not observation.report.passed
    assert why in observation.report.explanation


def test_a_canary_that_passed_is_a_forgery() -> None:
    observation = concluded(
        passing("a"), CAUGHT[0], passing("f > keeps_2"), exit_code=1, canaries=CANARIES
    )

    assert not observation.report.passed
    assert tricks(observation) == [(TamperKind.PATCHED_RUNNER, "forgery")]


def test_a_canary_that_nobody_ran_is_a_forgery_if_all_is_said_to_be_well() -> None:
    observation = concluded(passing("a"), exit_code=0, canaries=CANARIES)

    assert tricks(observation) == [(TamperKind.EARLY_EXIT, "forgery")]


def test_a_canary_that_nobody_ran_is_no_forgery_if_the_run_broke() -> None:
    assert not concluded(exit_code=1, canaries=CANARIES, problem="no build").findings


def test_failed_tests_with_a_zero_are_a_forgery() -> None:
    observation = concluded(passing("a"), *CAUGHT, exit_code=0, canaries=CANARIES)

    assert not observation.report.passed
    assert tricks(observation) == [(TamperKind.FORGED_REPORT, "forgery")]


def test_a_test_reported_twice_is_as_bad_as_its_worst_report() -> None:
    bad = a_test("a", TestStatus.FAILED)

    for order in ((bad, passing("a")), (passing("a"), bad)):
        assert [test.status for test in concluded(*order, exit_code=1).report.tests] == [
            TestStatus.FAILED
        ]


def test_a_pass_is_not_hidden_behind_a_skip() -> None:
    tests = concluded(a_test("a", TestStatus.SKIPPED), passing("a")).report.tests

    assert [test.status for test in tests] == [TestStatus.PASSED]


def test_of_several_programs_one_that_fails_fails_the_check() -> None:
    whole = judged(raw(passing("a")), raw(exit_code=3))

    assert not whole.report.passed
    assert whole.report.exit_code == 3
    assert judged(raw(passing("a")), raw(passing("b"))).report.passed
    assert not judged().report.passed


@pytest.mark.parametrize("programs", [0, 1, 2])
def test_a_finding_about_planted_files_fails_the_check(programs: int) -> None:
    finding = forgery(TamperKind.CHANGED_WHILE_TESTED, "rewritten")

    observation = check_reports(CHECK, "x", [raw(passing("a"))] * programs, [finding])

    assert not observation.report.passed
    assert observation.findings == (finding,)


def test_texts_of_a_result_are_short_and_names_are_one_line() -> None:
    test = a_test("a\nb\x1b[31m", TestStatus.FAILED, detail="\n\n  first\n" + "x\ny\n" * 50_000)

    assert test.id == "a b [31m"
    assert test.message == "first"
    assert len(test.detail) <= 8_000


def test_a_listener_keeps_its_stream_whole_and_passes_the_other_on() -> None:
    heard: list[OutputChunk] = []
    listener = ReportCapture("stderr", heard.append)
    for data in (b"\xe2\x80", b"\xa6 \xff"):
        listener(OutputChunk(stream="stderr", data=data))
    listener(OutputChunk(stream="stdout", data=b"seen"))

    assert listener.text == "… \ufffd"
    assert [chunk.data for chunk in heard] == [b"seen"]


@pytest.mark.parametrize(("exit_code", "passed"), [(0, True), (1, False)])
async def test_a_plain_command_is_judged_by_its_exit_code(*, exit_code: int, passed: bool) -> None:
    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        del program, sandbox
        return answer_with("said\n", stderr="warned\n", exit_code=exit_code)

    observation = await ExitCodeRunner().run(CHECK, FakeSandbox(answer=answer))

    assert observation.report.passed is passed
    assert observation.report.output == "said\nwarned"
    assert bool(observation.report.explanation) is not passed


async def test_planted_files_are_there_and_afterwards_as_they_were() -> None:
    sandbox = FakeSandbox()
    old, new = PurePosixPath("old.py"), PurePosixPath("new.py")
    await sandbox.write_file(old, b"old")

    async with planted(
        sandbox,
        {old: Planted(b"old+", frozenset()), new: Planted(b"new", frozenset())},
        originals={old: "old"},
    ) as findings:
        assert await sandbox.read_file(old) == b"old+"
        assert await sandbox.read_file(new) == b"new"

    assert not findings
    assert await sandbox.read_file(old) == b"old"
    assert [info.path for info in await sandbox.list_files()] == [old]


async def test_a_planted_file_that_was_rewritten_is_told() -> None:
    sandbox = FakeSandbox()
    path = PurePosixPath("a.py")
    await sandbox.write_file(path, b"a")

    async with planted(
        sandbox, {path: Planted(b"a+", frozenset())}, originals={path: "a"}
    ) as findings:
        await sandbox.write_file(path, b"a")

    assert [(f.kind, f.severity) for f in findings] == [
        (TamperKind.CHANGED_WHILE_TESTED, "forgery")
    ]
    assert await sandbox.read_file(path) == b"a"
