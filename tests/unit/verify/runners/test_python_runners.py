"""Python tests are found by reading, and only a sealed report is believed."""

import json
from hashlib import sha256
from pathlib import PurePosixPath

import pytest

from assay.contracts.execution import Command, ExecutionResult, Limits, Program
from assay.contracts.verdict import TamperKind, TestStatus
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.runners.python import PytestRunner, UnittestRunner
from assay.verify.spec import CheckSpec, Observation
from tests.doubles.fake_sandbox import FakeBackend, FakeSandbox, answer_with

TREE = Tree(
    files={
        PurePosixPath(path): TreeFile(text.encode())
        for path, text in {
            "tests/test_a.py": "def test_one(): pass\nclass TestB:\n    def test_two(self): pass\n"
            "def helper(): pass\n"
            "class TestC:\n    def __init__(self): pass\n    def test_x(self): pass\n",
            "tests/test_case.py": "import unittest\nclass Case(unittest.TestCase):\n"
            "    def test_three(self): pass\n",
            "other_test.py": "async def test_four(): pass\nif 0:\n    def test_five(): pass\n",
            "tests/__init__.py": "",
            "calc.py": "def test_not_here(): pass\n",
        }.items()
    }
)  # fmt: skip


def order(*argv: str) -> CheckSpec:
    return CheckSpec(command=" ".join(argv), argv=argv)


A, B = "tests/test_a.py::test_one", "tests/test_a.py::TestB::test_two"
CASE, FOUR = "tests/test_case.py::Case::test_three", "other_test.py::test_four"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("pytest",), {A, B, CASE, FOUR}),
        (("python", "-m", "pytest", "-q", "tests"), {A, B, CASE}),
        (("pytest", "tests/test_a.py", "--tb", "short"), {A, B}),
        (("pytest", "tests/test_a.py::TestB"), {B}),
        (("pytest", "calc.py"), {"calc.py::test_not_here"}),
        (("env", "--chdir=tests", "pytest"), {
            "test_a.py::test_one", "test_a.py::TestB::test_two", "test_case.py::Case::test_three",
        }),
        (("pytest", "-k", "one"), set[str]()),
    ],
)  # fmt: skip
def test_tests_of_pytest_are_found_by_reading(argv: tuple[str, ...], expected: set[str]) -> None:
    assert PytestRunner().understands(argv)
    assert PytestRunner().expected(order(*argv), TREE) == expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("python", "-m", "unittest"), {"tests.test_case.Case.test_three"}),
        (("python3", "-m", "unittest", "-v", "tests.test_case.Case"), {
            "tests.test_case.Case.test_three",
        }),
        (("python", "-m", "unittest", "discover", "-s", "tests"), set[str]()),
    ],
)  # fmt: skip
def test_tests_of_unittest_are_found_by_reading(argv: tuple[str, ...], expected: set[str]) -> None:
    assert UnittestRunner().understands(argv)
    assert UnittestRunner().expected(order(*argv), TREE) == expected


def test_a_configuration_that_selects_tests_is_not_second_guessed() -> None:
    ini = {PurePosixPath("pytest.ini"): TreeFile(b"[pytest]\npython_functions = check_*\n")}

    assert not PytestRunner().expected(order("pytest"), TREE.with_files(ini))


def test_other_commands_are_not_understood() -> None:
    for argv in (("python", "test_a.py"), ("sh", "-c", "pytest"), ("python", "-m", "http.server")):
        assert not PytestRunner().understands(argv)
        assert not UnittestRunner().understands(argv)


Line = tuple[str, ...]
PASSED: Line = ("test", A, "passed", "", "", "")
END: Line = ("end", "0", "1")


def sealed(key: bytes, lines: tuple[Line, ...]) -> str:
    text = ""
    for number, line in enumerate(lines):
        body = f"{number} {json.dumps(line)}".encode()
        seal = sha256(key + sha256(key + body).digest()).hexdigest()[:32]
        text += f"{seal} {body.decode()}\n"
        key = sha256(key + b"next").digest()
    return text


async def observe(
    *lines: Line, spoil: str = "", exit_code: int = 0, canaries: bool = False
) -> Observation:
    """What comes of a report, with `spoil` written after its first line."""

    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        del sandbox
        assert isinstance(program, Command)
        report = sealed(bytes.fromhex(json.loads(program.stdin)["key"]), lines)
        first, end, rest = report.partition("\n")
        return answer_with(first + end + spoil + rest, stderr="printed", exit_code=exit_code)

    wanted = CheckSpec(command="pytest", argv=("pytest",), canaries=canaries)
    async with FakeBackend(answer=answer).open_sandbox(Limits()) as sandbox:
        return await PytestRunner().run(wanted, sandbox)


async def test_a_sealed_report_is_believed() -> None:
    observation = await observe(PASSED, END)

    assert observation.report.passed
    assert [test.id for test in observation.report.tests] == [A]
    assert observation.report.output == "printed"
    assert not observation.findings


async def test_a_failing_test_fails_the_check_whatever_the_exit_code() -> None:
    observation = await observe(("test", A, "failed", "E 1 == 2", "all of it", ""), END)

    assert not observation.report.passed
    assert observation.report.tests[0].status is TestStatus.FAILED
    assert observation.report.tests[0].message == "E 1 == 2"


async def test_a_report_without_an_end_is_an_early_exit() -> None:
    observation = await observe(PASSED)

    assert not observation.report.passed
    assert [(f.kind, f.severity) for f in observation.findings] == [
        (TamperKind.EARLY_EXIT, "forgery")
    ]


async def test_a_crash_claims_no_success() -> None:
    observation = await observe(exit_code=1)

    assert [(f.kind, f.severity) for f in observation.findings] == [
        (TamperKind.EARLY_EXIT, "doubt")
    ]


@pytest.mark.parametrize(
    "spoil", ['1 ["end", "0", "1"]\n', f'{"0" * 32} 1 ["end"]\n', "5 passed\n"]
)
async def test_a_line_with_another_seal_is_forged(spoil: str) -> None:
    observation = await observe(PASSED, END, spoil=spoil)

    assert not observation.report.passed
    assert TamperKind.FORGED_REPORT in {finding.kind for finding in observation.findings}


async def test_what_comes_after_the_end_is_forged() -> None:
    observation = await observe(END, PASSED)

    assert TamperKind.FORGED_REPORT in {finding.kind for finding in observation.findings}


async def test_a_canary_that_passes_gives_the_runner_away() -> None:
    observation = await observe(
        PASSED, ("canary", "x", "caught"), ("canary", "y", "missed"), END, canaries=True
    )

    assert not observation.report.passed
    assert (observation.report.canaries_planted, observation.report.canaries_caught) == (2, 1)
    assert [finding.kind for finding in observation.findings] == [TamperKind.PATCHED_RUNNER]


async def test_no_canary_at_all_is_no_pass() -> None:
    assert not (await observe(PASSED, END, canaries=True)).report.passed


async def test_no_tests_are_no_pass() -> None:
    observation = await observe(("end", "5", "0"))

    assert not observation.report.passed
    assert observation.report.explanation == "it found no tests"


async def test_skipped_tests_alone_are_no_pass() -> None:
    skipped: Line = ("test", A, "skipped", "tests/test_a.py: later", "", "")

    assert (await observe(skipped, END)).report.explanation == "all tests were skipped"
    assert (await observe(PASSED, skipped, END)).report.passed


async def test_who_raised_a_skip_is_known() -> None:
    observation = await observe(PASSED, ("skips", "calc.py"), ("skips", ""), END)

    found = [(finding.kind, finding.severity, finding.path) for finding in observation.seen]
    assert found == [
        (TamperKind.TESTS_SKIPPED, "forgery", PurePosixPath("calc.py")),
        (TamperKind.TESTS_SKIPPED, "forgery", None),
    ]
