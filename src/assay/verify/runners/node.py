"""Run `node --test` with Assay's reporter and with canaries.

Each test file runs in a separate process and the reporter in their parent, so test output is never
taken for a result. A file that ends its process early passes as a whole for Node. The missing tests
and canaries reveal it.
"""

import base64
import json
import re
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.execution import WORKSPACE, Command
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import Finding, Grade, TamperKind, TestResult, TestStatus
from assay.contracts.workspace import Tree
from assay.verify.canaries import Plan, planted, read_texts
from assay.verify.parse_command import read_invocation
from assay.verify.report_checks import RawReport, ReportCapture, a_test, conclude, with_doubt
from assay.verify.runner import CheckSpec, Observation
from assay.verify.runners.javascript import SEPARATOR, expected_ids, plan_for_node

_SUFFIXES: Final = frozenset({".js", ".mjs", ".cjs"})
_PACKAGE: Final = PurePosixPath("package.json")
_FOUND_BY_NAME: Final = re.compile(r"(?:.*[.\-_])?test\.[cm]?js|test-.*\.[cm]?js")
_FILTERS: Final = ("--test-name-pattern", "--test-skip-pattern", "--test-only", "--test-shard")


class NodeRunner:
    """The test runner that comes with Node.js."""

    name = "node"
    most = Grade.PROVEN
    configuration: tuple[str, ...] = (
        "package.json",
        "**/package.json",
        "node_modules/**",
        ".npmrc",
    )

    def understands(self, argv: tuple[str, ...]) -> bool:
        call = read_invocation(argv)
        return call.program == "node" and "--test" in call.arguments

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        return frozenset(
            test
            for path in (() if _is_filtered(order) else _test_files(order))
            for test in expected_ids(path, tree.text(path) or "")
        )

    async def run(
        self, order: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        call = read_invocation(order.argv)
        listener = ReportCapture("stderr", on_output)
        texts = await read_texts(sandbox, (_PACKAGE, *_test_files(order)))
        is_module = _is_module(texts.pop(_PACKAGE, "{}"))
        # A filter would leave out the canaries too.
        plant = order.canaries and not _is_filtered(order)
        plan = plan_for_node(texts, package_is_module=is_module) if plant else Plan()
        async with planted(sandbox, plan) as findings:
            result = await sandbox.run(
                Command(
                    argv=("node", *_reporting(call.arguments)),
                    env=call.env,
                    cwd=call.cwd,
                    timeout_s=order.timeout_s,
                ),
                on_output=listener,
            )
        tests, problem = read_report(listener.text)
        for file in _empty_passes(tests, texts):
            tests = tuple(test for test in tests if test.id != file)
            problem = f"the process of {file} ended before any of its tests did"
            findings.append(
                Finding(trick=TamperKind.EARLY_EXIT, severity="doubt", explanation=problem)
            )
        account = RawReport(
            tests=tests,
            canaries=plan.names,
            problem=problem,
            findings=tuple(findings),
            report_stream="stderr" if tests else None,
        )
        return with_doubt(order, conclude(order, self.name, result, account))


def _test_files(order: CheckSpec) -> tuple[PurePosixPath, ...]:
    """Return the protected files that the command runs, as far as this is known."""
    call = read_invocation(order.argv)
    words = [word for word in call.arguments if not word.startswith("-")]
    named = [call.cwd / word for word in words]
    return tuple(
        path
        for path in order.protected
        if path.suffix in _SUFFIXES
        and (any(path.is_relative_to(one) for one in named) if named else _is_found(path))
    )


def _is_found(path: PurePosixPath) -> bool:
    """Whether Node runs a file by default."""
    return bool(_FOUND_BY_NAME.fullmatch(path.name)) or "test" in path.parts[:-1]


def _is_filtered(order: CheckSpec) -> bool:
    return any(word.startswith(_FILTERS) for word in order.argv)


def _is_module(package: str) -> bool:
    try:
        fields: Any = json.loads(package)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and cast("dict[str, Any]", fields).get("type") == "module"


def _empty_passes(
    tests: tuple[TestResult, ...], texts: dict[PurePosixPath, str]
) -> tuple[str, ...]:
    """Return the files that passed as a whole although they contain tests."""
    with_tests = {str(path) for path, text in texts.items() if "node:test" in text}
    return tuple(test.id for test in tests if test.passed and test.id in with_tests)


def _reporting(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments with Assay's reporter in place of any other."""
    kept: list[str] = []
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word.startswith(("--test-reporter=", "--test-reporter-destination=")):
            continue
        elif word in {"--test-reporter", "--test-reporter-destination"}:
            skip = True
        else:
            kept.append(word)
    source = resources.files("assay.verify.drivers").joinpath("node_reporter.mjs")
    encoded = base64.b64encode(source.read_bytes()).decode()
    return (
        "--test-reporter=spec",
        "--test-reporter-destination=stdout",
        # A URL, because tested code could rewrite a file.
        f"--test-reporter=data:text/javascript;base64,{encoded}",
        "--test-reporter-destination=stderr",
        *kept,
    )


def read_report(text: str) -> tuple[tuple[TestResult, ...], str]:
    """Return the tests of a report, and the errors in it."""
    tests: list[TestResult] = []
    ended = False
    for line in text.splitlines():
        try:
            record: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a warning of Node itself
        if not isinstance(record, dict):
            continue
        fields = cast("dict[str, Any]", record)
        if fields.get("end") is True:
            ended = True
        elif isinstance(fields.get("titles"), list):
            tests.extend(_result(fields))
    return tuple(tests), "" if ended else "Node did not report to the end"


def _result(fields: dict[str, Any]) -> tuple[TestResult, ...]:
    # A group has the result of its tests, unless it failed by itself.
    if fields.get("group") and (fields.get("passed") or fields.get("kind") == "subtestsFailed"):
        return ()
    file = str(fields.get("file", "")).removeprefix(f"{WORKSPACE}/")
    titles = [str(title).removeprefix(f"{WORKSPACE}/") for title in fields["titles"]]
    # A file without tests counts as one test.
    name = SEPARATOR.join(titles if titles[:1] == [file] else [file, *titles])
    if fields.get("skipped") or fields.get("todo"):
        status = TestStatus.SKIPPED
    elif fields.get("passed"):
        status = TestStatus.PASSED
    elif name == file:
        status = TestStatus.ERROR
    else:
        status = TestStatus.FAILED
    return (
        a_test(
            name,
            status,
            message=str(fields.get("message", "")),
            detail=str(fields.get("detail", "")),
        ),
    )
