"""The test runners: Assay's own, and those of other installed distributions.

A distribution adds a runner through an entry point of the group `assay.runners` that names a
subclass of `assay.verify.runner.Runner`. Assay's own runners come first, so that no other
distribution can take over their commands. A command that belongs to no runner is judged only by
its exit code.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final

from assay.contracts.execution import Command
from assay.contracts.extensions import find_extensions, load_extension
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import CheckReport, Grade
from assay.contracts.workspace import project_env, project_script
from assay.verify.parse_command import read_invocation
from assay.verify.report_checks import explain_ending, printed_by
from assay.verify.runner import Runner
from assay.verify.runners.cargo import CargoRunner
from assay.verify.runners.ctest import CTestRunner
from assay.verify.runners.go import GoRunner
from assay.verify.runners.javascript import JestRunner, NodeRunner
from assay.verify.runners.junit import JUnitConsoleRunner, JUnitRunner
from assay.verify.runners.python import PytestRunner, UnittestRunner
from assay.verify.spec import CheckSpec, Observation

ENTRY_POINTS: Final = "assay.runners"
RUNNERS: Final[tuple[Runner, ...]] = (
    PytestRunner(),
    UnittestRunner(),
    NodeRunner(),
    JestRunner(),
    CargoRunner(),
    GoRunner(),
    CTestRunner(),
    JUnitRunner(),
    JUnitConsoleRunner(),
)


class ExitCodeRunner(Runner):
    """Any command that belongs to no supported test runner."""

    name = "command"
    most = Grade.CHECKED
    configuration = (
        "Makefile",
        "makefile",
        "GNUmakefile",
        "justfile",
        "tox.ini",
        "vitest.config.*",
        "vitest.workspace.*",
        "jest.config.*",
        ".mocharc*",
    )

    def understands(self, argv: tuple[str, ...]) -> bool:
        return bool(argv)

    async def run(
        self, check: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        if check.argv[:-1] == ("bash", "-c"):
            script = project_script(check.argv[-1])
            command = Command(argv=script, timeout_s=check.timeout_s)
        else:
            env = project_env(read_invocation(check.argv).cwd)
            command = Command(argv=check.argv, env=env, timeout_s=check.timeout_s)
        result = await sandbox.run(command, on_output=on_output)
        return Observation(
            report=CheckReport(
                command=check.command,
                runner=self.name,
                passed=result.succeeded,
                exit_code=result.exit_code,
                explanation=explain_ending(result),
                output=printed_by(result),
                duration_s=result.duration_s,
            )
        )


def choose_runner(argv: tuple[str, ...]) -> Runner:
    """Return the runner that gives the most evidence for a command.

    Raises:
        UsageError: If the command belongs to none of Assay's runners, and an entry point of another
            distribution cannot be used.
    """
    return next((runner for runner in _all_runners() if runner.understands(argv)), ExitCodeRunner())


def _all_runners() -> Iterator[Runner]:
    yield from RUNNERS
    yield from installed_runners()


@cache
def installed_runners() -> tuple[Runner, ...]:
    """Return the runners of other distributions, in the order of their names.

    Raises:
        UsageError: If an entry point cannot be loaded, or is no runner.
    """
    entries = sorted(find_extensions(ENTRY_POINTS).items())
    return tuple(load_extension(entry, Runner, call=True) for _, entry in entries)
