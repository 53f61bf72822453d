"""Run `go test` with JSON events, and with a file of canaries in each tested package.

The go command derives the events from the output of a test program. A program can therefore print
forged results and exit in `init` before real ones exist. It would have to print the canaries too,
whose names it can only learn by reading their files. That is not prevented, but its signs in the
source are reported as a doubt.
"""

import json
import re
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.execution import Command
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import Grade, TestResult, TestStatus
from assay.contracts.workspace import Tree
from assay.verify.canaries import Plan, new_canary_name, planted, read_texts
from assay.verify.parse_command import Invocation, read_invocation
from assay.verify.report_checks import RawReport, ReportCapture, a_test, conclude, with_doubt
from assay.verify.spec import CheckSpec, Observation

_ENV: Final = {
    "GOCACHE": "/tmp/go-cache",
    "GOPATH": "/tmp/go",
    "GOPROXY": "off",
    "GOTOOLCHAIN": "local",
    "GOTELEMETRY": "off",
}
_NARROWING: Final = re.compile(
    r"--?(?:test\.)?(?:run|skip|list|c|bench|short|tags|failfast)(?:=.*)?"
)
_JSON_FLAG: Final = re.compile(r"--?json(?:=.*)?")
_MODULE: Final = re.compile(r'^module\s+"?(?P<name>[^\s"]+)"?', re.MULTILINE)
_PACKAGE: Final = re.compile(r"^package\s+(?P<name>\w+)", re.MULTILINE)
_TEST: Final = re.compile(r"^func (?P<name>Test(?![a-z])\w*)\(\w+ \*testing\.T\)", re.MULTILINE)
_CONSTRAINT: Final = re.compile(r"^//(?:go:build| \+build)", re.MULTILINE)
_BLOCK_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
_RAW_STRING: Final = re.compile(r"`[^`]*`")
_FRAME: Final = re.compile(r"^(?:=== |\s*--- |PASS$|FAIL$|ok\s|FAIL\s|exit status )")
_STATUSES: Final = {
    "pass": TestStatus.PASSED,
    "fail": TestStatus.FAILED,
    "skip": TestStatus.SKIPPED,
}
_FAILURES: Final = ('t.Error("planted")', 't.Fatal("planted")', "t.FailNow()", "t.Fail()")
_MAX_LINES_OF_A_TEST: Final = 400


class GoRunner:
    """The test runner of the go command."""

    name = "go"
    most = Grade.PROVEN
    configuration: tuple[str, ...] = ("**/go.mod", "**/go.sum", "**/go.work*", "**/vendor/**")

    def understands(self, argv: tuple[str, ...]) -> bool:
        call = read_invocation(argv)
        return call.program == "go" and call.arguments[:1] == ("test",)

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        call = read_invocation(order.argv)
        module = _MODULE.search(tree.text(call.cwd / "go.mod") or "")
        if module is None or not _runs_everything(call):
            return frozenset()
        found: set[str] = set()
        for path in _test_files(order, call):
            text = tree.text(path) or ""
            package = "/".join((module["name"], *path.parent.relative_to(call.cwd).parts))
            if not _CONSTRAINT.search(text):
                found.update(f"{package}::{name}" for name in _tests_in(text))
        return frozenset(found)

    async def run(
        self, order: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        call = read_invocation(order.argv)
        plan = Plan()
        if order.canaries and _runs_everything(call):
            plan = _plan(await read_texts(sandbox, _test_files(order, call)))
        arguments = (word for word in call.arguments[1:] if not _JSON_FLAG.fullmatch(word))
        listener = ReportCapture("stdout", on_output)
        async with planted(sandbox, plan) as findings:
            result = await sandbox.run(
                Command(
                    argv=("go", "test", "-json", "-count=1", *arguments),
                    env={**_ENV, **call.env},
                    cwd=call.cwd,
                    timeout_s=order.timeout_s,
                ),
                on_output=listener,
            )
        tests, printed = read_events(listener.text)
        problem = "" if result.exit_code in {0, 1} else _first_error(result.stderr)
        account = RawReport(
            tests=tests,
            canaries=plan.names,
            problem=problem,
            findings=tuple(findings),
            output="\n".join(part for part in (result.stderr, printed) if part.strip()),
        )
        return with_doubt(order, conclude(order, self.name, result, account))


def _runs_everything(call: Invocation) -> bool:
    """Whether the command runs all tests below its folder."""
    words = call.arguments[1:]
    targets = [word for word in words if not word.startswith("-")]
    return targets == ["./..."] and not any(_NARROWING.fullmatch(word) for word in words)


def _test_files(order: CheckSpec, call: Invocation) -> tuple[PurePosixPath, ...]:
    """Return the protected test files, without those that the go command ignores."""
    return tuple(
        path
        for path in order.protected
        if path.name.endswith("_test.go")
        and path.is_relative_to(call.cwd)
        and not any(part.startswith(("_", ".")) or part == "testdata" for part in path.parts)
    )


def _tests_in(text: str) -> tuple[str, ...]:
    text = _RAW_STRING.sub("``", _BLOCK_COMMENT.sub("", text))
    return tuple(match["name"] for match in _TEST.finditer(text) if match["name"] != "TestMain")


def _plan(texts: dict[PurePosixPath, str]) -> Plan:
    """Plan one more test file of canaries for each package."""
    files: dict[PurePosixPath, bytes] = {}
    names: set[str] = set()
    packages: dict[tuple[PurePosixPath, str], None] = {}
    for path, text in texts.items():
        package = _PACKAGE.search(_BLOCK_COMMENT.sub("", text))
        if package and not _CONSTRAINT.search(text) and _tests_in(text):
            packages[path.parent, package["name"]] = None
    for folder, package in packages:
        own = {f"Test{new_canary_name().title().replace('_', '')}": act for act in _FAILURES}
        names.update(own)
        tests = "".join(f"func {name}(t *testing.T) {{ {act} }}\n" for name, act in own.items())
        path = folder / f"{new_canary_name()}_test.go"
        files[path] = f'package {package}\n\nimport "testing"\n\n{tests}'.encode()
    return Plan(files=files, names=frozenset(names))


def read_events(text: str) -> tuple[tuple[TestResult, ...], str]:
    """Return the tests in a stream of events, and the output outside of any test.

    An unfinished test is an error, and so is a package that failed without a failed test.
    """
    statuses: dict[str, TestStatus] = {}
    lines: dict[str, list[str]] = {}
    outside: list[str] = []
    failed_packages: list[str] = []
    for line in text.splitlines():
        event = _event(line)
        action, package, test = (str(event.get(key, "")) for key in ("Action", "Package", "Test"))
        name = f"{package}::{test}"
        if not event:
            outside.append(line)
        elif action == "output":
            _keep(event, lines.setdefault(name, []) if test else outside)
        elif not test and action == "fail":
            failed_packages.append(package)
        elif test and action == "run":
            statuses.setdefault(name, TestStatus.ERROR)
        elif test and action in _STATUSES:
            statuses[name] = _worse(statuses.get(name), _STATUSES[action])
    tests = [_result(name, status, lines.get(name, [])) for name, status in statuses.items()]
    bad = {test.id.partition("::")[0] for test in tests if test.status in _BAD}
    tests.extend(
        a_test(package, TestStatus.ERROR, message="the package failed outside of its tests")
        for package in failed_packages
        if package not in bad
    )
    return tuple(tests), "\n".join(outside)


_BAD: Final = frozenset({TestStatus.FAILED, TestStatus.ERROR})


def _worse(known: TestStatus | None, new: TestStatus) -> TestStatus:
    """Return the status of a test that ends, perhaps for the second time."""
    return TestStatus.FAILED if known is TestStatus.FAILED else new


def _keep(event: dict[str, Any], lines: list[str]) -> None:
    printed = str(event.get("Output", "")).rstrip("\n")
    if len(lines) < _MAX_LINES_OF_A_TEST and not _FRAME.match(printed):
        lines.append(printed)


def _event(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        event: Any = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", event) if isinstance(event, dict) else {}


def _result(name: str, status: TestStatus, lines: list[str]) -> TestResult:
    if status is TestStatus.ERROR:
        return a_test(name, status, message="it was begun and did not end", detail="\n".join(lines))
    if status is TestStatus.FAILED:
        message = "" if any(line.strip() for line in lines) else "a test within it failed"
        return a_test(name, status, message=message, detail="\n".join(lines))
    return a_test(name, status)


def _first_error(stderr: str) -> str:
    """Return the first compiler message with a location, or else the first line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"\S+\.go:\d+", line)]
    return (named or lines or ["go could not run the tests"])[0]
