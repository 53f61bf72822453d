"""Run a command that is judged only by its exit code, which never gives the best grade."""

from typing import Final

from assay.contracts.execution import Command
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import CheckReport, Grade
from assay.contracts.workspace import Tree, project_env, project_script
from assay.verify.parse_command import read_invocation
from assay.verify.report_checks import explain_ending, printed_by
from assay.verify.runner import CheckSpec, Observation

_SHELL: Final = ("bash", "-c")


class PlainRunner:
    """Any command that belongs to no supported test runner."""

    name = "command"
    most = Grade.CHECKED
    configuration: tuple[str, ...] = (
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

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        del order, tree
        return frozenset()

    async def run(
        self, order: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        result = await sandbox.run(_command(order), on_output=on_output)
        return Observation(
            report=CheckReport(
                command=order.command,
                runner=self.name,
                passed=result.succeeded,
                exit_code=result.exit_code,
                explanation=explain_ending(result),
                output=printed_by(result),
                duration_s=result.duration_s,
            )
        )


def _command(order: CheckSpec) -> Command:
    if order.argv[:-1] == _SHELL:
        return Command(argv=project_script(order.argv[-1]), timeout_s=order.timeout_s)
    env = project_env(read_invocation(order.argv).cwd)
    return Command(argv=order.argv, env=env, timeout_s=order.timeout_s)
