"""Run Gradle and Maven, which write reports in JUnit's XML.

Tested code can write these report files too, and there are no canaries, so the best grade is not
possible.
"""

from pathlib import PurePosixPath
from typing import Final

from assay.contracts.errors import WorkspaceError
from assay.contracts.execution import Command
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import Grade, TestResult
from assay.contracts.workspace import Tree
from assay.verify.parse_command import read_invocation
from assay.verify.report_checks import RawReport, conclude
from assay.verify.runner import CheckSpec, Observation
from assay.verify.runners.junit import read_junit

_REPORTS: Final = ("build/test-results/*/*.xml", "target/surefire-reports/*.xml")
_ENV: Final = {
    "GRADLE_USER_HOME": "/tmp/gradle",
    "GRADLE_OPTS": "-Dorg.gradle.daemon=false",
}
_MAX_REPORT_BYTES: Final = 16 << 20


class JUnitRunner:
    """The build tools Gradle and Maven."""

    name = "junit"
    most = Grade.CHECKED
    configuration: tuple[str, ...] = (
        "**/*.gradle",
        "**/*.gradle.kts",
        "**/gradle.properties",
        "**/gradle/wrapper/**",
        "**/gradlew",
        "**/pom.xml",
        "**/.mvn/**",
        "**/mvnw",
    )

    def understands(self, argv: tuple[str, ...]) -> bool:
        call = read_invocation(argv)
        tests = {"test", "check", "build", "verify"} & set(call.arguments)
        return call.program in {"gradle", "gradlew", "mvn", "mvnw"} and bool(tests)

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        del order, tree
        return frozenset()

    async def run(
        self, order: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        call = read_invocation(order.argv)
        # Remove old reports, so that each report belongs to this run only.
        for path in await _reports(sandbox, call.cwd):
            await sandbox.remove_path(path)
        result = await sandbox.run(
            Command(
                argv=(call.path, *call.arguments),
                env={**_ENV, **call.env},
                cwd=call.cwd,
                timeout_s=order.timeout_s,
            ),
            on_output=on_output,
        )
        tests: list[TestResult] = []
        problem = ""
        for path in await _reports(sandbox, call.cwd):
            try:
                document = await sandbox.read_file(path, max_bytes=_MAX_REPORT_BYTES)
            except WorkspaceError as error:
                problem = f"the report {path} cannot be read: {error}"
                continue
            found, wrong = read_junit(document)
            tests.extend(found)
            problem = problem or wrong
            await sandbox.remove_path(path)
        return conclude(order, self.name, result, RawReport(tests=tuple(tests), problem=problem))


async def _reports(sandbox: Sandbox, folder: PurePosixPath) -> tuple[PurePosixPath, ...]:
    return tuple(
        info.path
        for info in await sandbox.list_files()
        if info.kind == "file"
        and info.path.is_relative_to(folder)
        and any(info.path.match(pattern) for pattern in _REPORTS)
    )
