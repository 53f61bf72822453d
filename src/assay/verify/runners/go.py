"""Run `go test` with JSON events, and with a file of canaries in each tested package.

The go command derives the events from the output of a test program. A program can therefore print
forged results and exit in `init` before real ones exist. It would have to print the canaries too,
whose names it can only learn by reading their files. That is not prevented, but its signs in the
source are reported as a doubt.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.verdict import TestResult, TestStatus
from assay.contracts.workspace import Tree
from assay.verify.parse_command import read_invocation
from assay.verify.report_checks import BAD, RawReport, ReportCapture, a_test, json_object
from assay.verify.runner import (
    Canaries,
    CheckRun,
    Planted,
    Runner,
    names_of,
    new_canary_name,
    plant,
)
from assay.verify.spec import CheckSpec

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


class GoRunner(Runner):
    """The test runner of the go command."""

    name = "go"
    configuration = ("**/go.mod", "**/go.sum", "**/go.work*", "**/vendor/**")

    def understands(self, argv: tuple[str, ...]) -> bool:
        call = read_invocation(argv)
        return call.program == "go" and call.arguments[:1] == ("test",)

    def expected(self, check: CheckSpec, tree: Tree) -> frozenset[str]:
        folder = read_invocation(check.argv).cwd
        module = _MODULE.search(tree.text(folder / "go.mod") or "")
        if module is None:
            return frozenset()
        found: set[str] = set()
        for path in self.test_files(check):
            text = tree.text(path) or ""
            package = "/".join((module["name"], *path.parent.relative_to(folder).parts))
            if not _CONSTRAINT.search(text):
                found.update(f"{package}::{name}" for name in _tests_in(text))
        return frozenset(found)

    def test_files(self, check: CheckSpec) -> tuple[PurePosixPath, ...]:
        """Return the protected test files; none if the command runs only some tests."""
        call = read_invocation(check.argv)
        words = call.arguments[1:]
        targets = [word for word in words if not word.startswith("-")]
        if targets != ["./..."] or any(_NARROWING.fullmatch(word) for word in words):
            return ()
        return tuple(
            path
            for path in check.protected
            if path.name.endswith("_test.go")
            and path.is_relative_to(call.cwd)
            # The go command ignores these.
            and not any(part.startswith(("_", ".")) or part == "testdata" for part in path.parts)
        )

    def plan_canaries(self, check: CheckSpec, texts: Mapping[PurePosixPath, str]) -> Canaries:
        """Plan one more test file for each package."""
        del check
        packages: dict[tuple[PurePosixPath, str], None] = {}
        for path, text in texts.items():
            package = _PACKAGE.search(_BLOCK_COMMENT.sub("", text))
            if package and not _CONSTRAINT.search(text) and _tests_in(text):
                packages[path.parent, package["name"]] = None
        canaries: dict[PurePosixPath, Planted] = {}
        for folder, package in packages:
            canaries[folder / f"{new_canary_name()}_test.go"] = plant(
                f'package {package}\n\nimport "testing"\n\n',
                "func {name}(t *testing.T) {{ {act} }}\n",
                _FAILURES,
                rename=lambda name: f"Test{name.title().replace('_', '')}",
            )
        return canaries

    async def execute(self, run: CheckRun) -> Sequence[RawReport]:
        arguments = (word for word in run.call.arguments[1:] if not _JSON_FLAG.fullmatch(word))
        capture = ReportCapture("stdout", run.on_output)
        result = await run.start(
            "go", "test", "-json", "-count=1", *arguments, env=_ENV, on_output=capture
        )
        tests, printed = read_events(capture.text)
        report = RawReport(
            result=result,
            tests=tests,
            canaries=names_of(run.canaries),
            problem="" if result.exit_code in {0, 1} else _first_error(result.stderr),
            output="\n".join(part for part in (result.stderr, printed) if part.strip()),
        )
        return [report]


def _tests_in(text: str) -> tuple[str, ...]:
    text = _RAW_STRING.sub("``", _BLOCK_COMMENT.sub("", text))
    return tuple(match["name"] for match in _TEST.finditer(text) if match["name"] != "TestMain")


def read_events(text: str) -> tuple[tuple[TestResult, ...], str]:
    """Return the tests in a stream of events, and the output outside of any test.

    An unfinished test is an error, and so is a package that failed without a failed test.
    """
    statuses: dict[str, TestStatus] = {}
    lines: dict[str, list[str]] = {}
    outside: list[str] = []
    failed_packages: list[str] = []
    for line in text.splitlines():
        event = json_object(line)
        action, package, test = (str(event.get(key, "")) for key in ("Action", "Package", "Test"))
        name = f"{package}::{test}"
        if not event:
            outside.append(line)
        elif action == "output":
            kept = lines.setdefault(name, []) if test else outside
            printed = str(event.get("Output", "")).rstrip("\n")
            if len(kept) < _MAX_LINES_OF_A_TEST and not _FRAME.match(printed):
                kept.append(printed)
        elif not test and action == "fail":
            failed_packages.append(package)
        elif test and action == "run":
            statuses.setdefault(name, TestStatus.ERROR)
        # A test that ends a second time cannot undo its failure.
        elif test and action in _STATUSES and statuses.get(name) is not TestStatus.FAILED:
            statuses[name] = _STATUSES[action]
    tests = [_result(name, status, lines.get(name, [])) for name, status in statuses.items()]
    bad = {test.id.partition("::")[0] for test in tests if test.status in BAD}
    tests.extend(
        a_test(package, TestStatus.ERROR, message="the package failed outside of its tests")
        for package in failed_packages
        if package not in bad
    )
    return tuple(tests), "\n".join(outside)


def _result(name: str, status: TestStatus, lines: list[str]) -> TestResult:
    message = ""
    if status is TestStatus.ERROR:
        message = "it was begun and did not end"
    elif status is TestStatus.FAILED and not any(line.strip() for line in lines):
        message = "a test within it failed"
    detail = "\n".join(lines) if status in BAD else ""
    return a_test(name, status, message=message, detail=detail)


def _first_error(stderr: str) -> str:
    """Return the first compiler message with a location, or else the first line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"\S+\.go:\d+", line)]
    return (named or lines or ["go could not run the tests"])[0]
