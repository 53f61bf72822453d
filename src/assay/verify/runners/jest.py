"""Run jest with its JSON report and with canaries.

Jest runs tests in the process that reports them, so a tested program could print a forged report
and exit. The report would need the canaries, whose names it can read from the test files. That is
not prevented, but its signs in the source are reported as a doubt.
"""

import json
import re
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.execution import WORKSPACE, Command
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import Finding, Grade, TamperKind, TestResult, TestStatus
from assay.contracts.workspace import Tree
from assay.verify.canaries import Plan, planted, read_texts
from assay.verify.parse_command import Invocation, read_invocation
from assay.verify.report_checks import RawReport, ReportCapture, a_test, conclude, with_doubt
from assay.verify.runner import CheckSpec, Observation
from assay.verify.runners.javascript import SEPARATOR, expected_ids, plan_for_jest

_SUFFIXES: Final = frozenset({".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx"})
_WHERE: Final = (
    "const path = require('path');"
    "const own = require.resolve('jest/package.json', { paths: [process.cwd()] });"
    "process.stdout.write(path.join(path.dirname(own), 'bin', 'jest.js'));"
)
_OURS: Final = frozenset({"--json", "--ci", "--watch", "--watchAll", "--bail", "-b"})
_FILTERS: Final = (
    "-t",
    "--testNamePattern",
    "--onlyChanged",
    "-o",
    "--onlyFailures",
    "--findRelatedTests",
    "--shard",
    "--testPathIgnorePatterns",
    "--config",
)
_STATUSES: Final = {
    "passed": TestStatus.PASSED,
    "failed": TestStatus.FAILED,
    "pending": TestStatus.SKIPPED,
    "skipped": TestStatus.SKIPPED,
    "disabled": TestStatus.SKIPPED,
    "todo": TestStatus.SKIPPED,
}
_FIRST_KEY: Final = '{"num'
_HINT: Final = (
    "jest is not in the sandbox: node_modules is left out of the workspace; name the folder in the "
    "setting sandbox.read_only and in NODE_PATH"
)


class JestRunner:
    """Jest, found in `node_modules` or through `NODE_PATH`."""

    name = "jest"
    most = Grade.PROVEN
    configuration: tuple[str, ...] = (
        "package.json",
        "**/package.json",
        "**/jest.config.*",
        "**/jest.setup.*",
        "**/jest-*.config.*",
        "**/babel.config.*",
        "**/.babelrc*",
        "**/tsconfig*.json",
        "**/__mocks__/**",
        "node_modules/**",
        ".npmrc",
    )

    def understands(self, argv: tuple[str, ...]) -> bool:
        call = read_invocation(argv)
        return call.program in {"jest", "jest.js"} and "--help" not in call.arguments

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        return frozenset(
            test
            for path in _test_files(order, read_invocation(order.argv))
            for test in expected_ids(path, tree.text(path) or "")
        )

    async def run(
        self, order: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        call = read_invocation(order.argv)
        program = call.path
        if "/" not in program:
            where = Command(argv=("node", "-e", _WHERE), env=call.env, cwd=call.cwd)
            found = await sandbox.run(where)
            if not found.succeeded:
                return conclude(order, self.name, found, RawReport(problem=_HINT))
            program = found.stdout
        texts = await read_texts(sandbox, _test_files(order, call)) if order.canaries else {}
        plan = plan_for_jest(texts) if order.canaries else Plan()
        listener = ReportCapture("stdout", on_output)
        arguments = (word for word in call.arguments if word not in _OURS)
        async with planted(sandbox, plan) as findings:
            result = await sandbox.run(
                Command(
                    argv=("node", program, "--json", "--ci", *arguments),
                    env=call.env,
                    cwd=call.cwd,
                    timeout_s=order.timeout_s,
                ),
                on_output=listener,
            )
        report = read_report(listener.text)
        account = RawReport(
            tests=report.tests,
            canaries=plan.names,
            problem=report.problem,
            findings=(*findings, *report.findings),
            report_stream="stdout" if report.tests else None,
        )
        return with_doubt(order, conclude(order, self.name, result, account))


def _test_files(order: CheckSpec, call: Invocation) -> tuple[PurePosixPath, ...]:
    """Return the protected files that the command runs, as far as this is known."""
    if any(word.startswith(_FILTERS) for word in call.arguments):
        return ()
    patterns = [word for word in call.arguments if not word.startswith("-")]
    return tuple(
        path
        for path in order.protected
        if path.suffix in _SUFFIXES
        and path.is_relative_to(call.cwd)
        and ("__tests__" in path.parts or {".test", ".spec"} & set(path.suffixes))
        and (not patterns or any(_is_meant(path, pattern) for pattern in patterns))
    )


def _is_meant(path: PurePosixPath, pattern: str) -> bool:
    """Whether jest runs a file for this pattern."""
    pattern = pattern.removeprefix("./")
    try:
        return re.search(pattern, str(WORKSPACE / path), re.IGNORECASE) is not None
    except re.error:
        return pattern in str(path)


def read_report(text: str) -> RawReport:
    """Return the content of the last report in an output, and a finding if there are several."""
    lines = [line for line in text.splitlines() if line.startswith(_FIRST_KEY)]
    if not lines:
        return RawReport(problem="jest ended without a report")
    try:
        report: Any = json.loads(lines[-1])
        results = cast("list[dict[str, Any]]", report["testResults"])
        tests = tuple(test for result in results for test in _tests_of(result))
        total = int(report["numTotalTests"])
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        return RawReport(problem=f"the report of jest cannot be read: {type(error).__name__}")
    findings: list[Finding] = []
    counted = sum(len(result.get("assertionResults", ())) for result in results)
    if len(lines) > 1 or counted != total:
        findings.append(
            Finding(
                trick=TamperKind.FORGED_REPORT,
                severity="forgery",
                explanation="the report of jest was printed twice, or does not fit its own totals",
            )
        )
    return RawReport(tests=tests, findings=tuple(findings))


def _tests_of(result: dict[str, Any]) -> list[TestResult]:
    file = str(result["name"]).removeprefix(f"{WORKSPACE}/")
    tests: list[TestResult] = []
    for entry in result["assertionResults"]:
        titles = [*entry["ancestorTitles"], entry["title"]]
        detail = "\n".join(map(str, entry.get("failureMessages") or ()))
        tests.append(
            a_test(
                SEPARATOR.join((file, *map(str, titles))),
                # An unknown status does not count as a pass.
                _STATUSES.get(str(entry["status"]), TestStatus.ERROR),
                # The text before the stack trace has the expected and actual values.
                message=" ".join(detail.partition("\n    at ")[0].split()),
                detail=detail,
            )
        )
    if result.get("status") == "failed" and not tests:
        tests.append(a_test(file, TestStatus.ERROR, detail=str(result.get("message", ""))))
    return tests
