"""Another distribution adds a test runner by an entry point, and a broken one is named."""

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from textwrap import dedent

import pytest

from assay.contracts.errors import UsageError
from assay.contracts.execution import ExecutionResult, Program
from assay.verify.runners.registry import choose_runner, installed_runners
from assay.verify.spec import CheckSpec
from tests.doubles.fake_sandbox import FakeSandbox, answer_with
from tests.support.distributions import install_distribution

TAP_RUNNER = dedent(
    """
    from assay.contracts.verdict import TestStatus
    from assay.verify.report_checks import RawReport, ReportCapture, a_test
    from assay.verify.runner import Runner, names_of, plant


    class TapRunner(Runner):
        name = "tap"
        configuration = ("tap.conf",)

        def understands(self, argv):
            return argv[:1] == ("tap-run",)

        def test_files(self, check):
            return tuple(path for path in check.protected if path.suffix == ".tap")

        def plan_canaries(self, check, texts):
            canaries = {}
            for path, text in texts.items():
                canaries[path] = plant(text, "{name}: {act}\\n", ["false"])
            return canaries

        async def execute(self, run):
            capture = ReportCapture("stdout", run.on_output)
            result = await run.start("tap-run", *run.call.arguments, on_output=capture)
            tests = []
            for line in capture.text.splitlines():
                passed, _, name = line.partition(" - ")
                status = TestStatus.PASSED if passed == "ok" else TestStatus.FAILED
                tests.append(a_test(name, status))
            return [RawReport(result=result, tests=tuple(tests), canaries=names_of(run.canaries))]
    """
)
Install = Callable[[str, str, str], None]
TESTS = PurePosixPath("all.tap")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    installed_runners.cache_clear()
    yield
    installed_runners.cache_clear()


@pytest.fixture(name="install")
def _install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Write what an installer writes: a module, and the record of its distribution."""

    def install(module: str, source: str, value: str) -> None:
        install_distribution(
            tmp_path / module,
            monkeypatch,
            name=module,
            version="1.0",
            modules={module: source},
            group="assay.runners",
            entry_points={module: value},
        )

    return install


def run_tap(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
    """Stand in for the program `tap-run`: a line passes if it ends with `true`."""
    del program
    tests = [line.split(": ") for line in sandbox.files[TESTS].content.decode().splitlines()]
    lines = [f"{'ok' if how == 'true' else 'not ok'} - {name}\n" for name, how in tests]
    return answer_with("".join(lines), exit_code=int(any(how != "true" for _, how in tests)))


@pytest.mark.parametrize(("how", "passed"), [("true", True), ("false", False)])
async def test_an_installed_runner_runs_checks_with_canaries(
    how: str, *, passed: bool, install: Install
) -> None:
    install("tap_for_assay", TAP_RUNNER, "tap_for_assay:TapRunner")
    sandbox = FakeSandbox(answer=run_tap)
    await sandbox.write_file(TESTS, f"adds: {how}\n".encode())

    runner = choose_runner(("tap-run", "all.tap"))
    check = CheckSpec(
        command="tap-run all.tap", argv=("tap-run", "all.tap"), protected=(TESTS,), canaries=True
    )
    observation = await runner.run(check, sandbox)

    assert runner.name == "tap"
    assert observation.report.passed is passed
    assert [test.id for test in observation.report.tests] == ["adds"]
    assert observation.report.canaries_planted == observation.report.canaries_caught == 1
    assert not observation.findings
    assert await sandbox.read_file(TESTS) == f"adds: {how}\n".encode()


async def test_a_runner_without_canaries_leaves_a_doubt(install: Install) -> None:
    install("tap_for_assay", TAP_RUNNER, "tap_for_assay:TapRunner")
    sandbox = FakeSandbox(answer=run_tap)
    await sandbox.write_file(TESTS, b"adds: true\n")

    check = CheckSpec(command="tap-run", argv=("tap-run",), canaries=True)
    observation = await choose_runner(check.argv).run(check, sandbox)

    assert observation.report.passed
    assert [finding.severity for finding in observation.findings] == ["doubt"]


@pytest.mark.parametrize(
    ("source", "value", "problem"),
    [
        ("raise RuntimeError('too old')", "broken_runner:X", "RuntimeError: too old"),
        ("", "broken_runner:X", "AttributeError"),
        ("", "missing_module:X", "No module named 'missing_module'"),
        ("class X: pass", "broken_runner:X", "is a X, not a Runner"),
        ("class X:\n    def __init__(self, a): pass", "broken_runner:X", "TypeError"),
    ],
)
def test_a_broken_entry_point_is_one_error_that_names_its_distribution(
    source: str, value: str, problem: str, install: Install
) -> None:
    install("broken_runner", source, value)

    with pytest.raises(UsageError, match=r"distribution broken_runner 1\.0") as caught:
        choose_runner(("make", "test"))

    assert problem in str(caught.value)
    assert caught.value.hint == "update it, or remove it: pip uninstall broken_runner"


def test_a_broken_entry_point_does_not_affect_the_runners_of_assay(install: Install) -> None:
    install("broken_runner", "", "broken_runner:X")

    assert choose_runner(("pytest",)).name == "pytest"


def test_another_distribution_cannot_take_over_a_command_of_assay(install: Install) -> None:
    source = TAP_RUNNER.replace('argv[:1] == ("tap-run",)', "True")
    install("tap_for_assay", source, "tap_for_assay:TapRunner")

    assert choose_runner(("cargo", "test")).name == "cargo"
    assert choose_runner(("make", "test")).name == "tap"
