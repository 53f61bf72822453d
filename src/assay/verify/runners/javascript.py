"""Run JavaScript tests with jest or `node --test`, with JSON reports and with canaries.

Node runs each test file in a separate process and the reporter in their parent, so test output
is never taken for a result. A file that ends its process early passes as a whole for Node; the
missing tests and canaries reveal it. Jest runs tests in the process that reports them, so a
tested program could print a forged report and exit. It would need the canaries, whose names it
can read from the test files. That is not prevented, but its signs in the source are reported as
a doubt.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.execution import WORKSPACE
from assay.contracts.ports import ignore_output
from assay.contracts.verdict import Finding, TamperKind, TestResult, TestStatus
from assay.contracts.workspace import Tree
from assay.verify.parse_command import read_invocation
from assay.verify.report_checks import RawReport, ReportCapture, a_test, json_object
from assay.verify.runner import (
    Canaries,
    CheckRun,
    Planted,
    Runner,
    names_of,
    new_canary_name,
    plant,
)
from assay.verify.spec import CheckSpec, doubt, forgery

SEPARATOR: Final = " > "
_TITLE: Final = re.compile(
    r"[ \t]*(?P<kind>describe|suite|test|it)\(\s*"
    r"""(?P<quote>['"])(?P<title>[^'"\\\n]*)(?P=quote)\s*[,)]"""
)
_MODULE: Final = re.compile(r"^(?:import\s*[\w{*'\"]|export\s)", re.MULTILINE)
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)

_ASSERTIONS: Final = {
    # Each of these must throw, in every form of call.
    "ok": "ok(false)",
    "equal": "equal(1, 2)",
    "notEqual": "notEqual(1, 1)",
    "strictEqual": "strictEqual(1, 2)",
    "notStrictEqual": "notStrictEqual(1, 1)",
    "deepEqual": "deepEqual({ a: 1 }, { a: 2 })",
    "notDeepEqual": "notDeepEqual({ a: 1 }, { a: 1 })",
    "deepStrictEqual": "deepStrictEqual({ a: 1 }, { a: 2 })",
    "notDeepStrictEqual": "notDeepStrictEqual({ a: 1 }, { a: 1 })",
    "throws": "throws(() => {})",
    "doesNotThrow": "doesNotThrow(() => { throw new Error('thrown') })",
    "match": "match('a', /b/)",
    "doesNotMatch": "doesNotMatch('a', /a/)",
    "fail": "fail()",
}
_MATCHERS: Final = {
    "toBe": "expect(1).toBe(2)",
    "toEqual": "expect([1]).toEqual([2])",
    "toStrictEqual": "expect([1]).toStrictEqual([2])",
    "toBeTruthy": "expect(false).toBeTruthy()",
    "toBeFalsy": "expect(true).toBeFalsy()",
    "toBeNull": "expect(1).toBeNull()",
    "toBeUndefined": "expect(1).toBeUndefined()",
    "toBeDefined": "expect(undefined).toBeDefined()",
    "toBeNaN": "expect(1).toBeNaN()",
    "toBeGreaterThan": "expect(1).toBeGreaterThan(2)",
    "toBeGreaterThanOrEqual": "expect(1).toBeGreaterThanOrEqual(2)",
    "toBeLessThan": "expect(2).toBeLessThan(1)",
    "toBeLessThanOrEqual": "expect(2).toBeLessThanOrEqual(1)",
    "toBeCloseTo": "expect(1).toBeCloseTo(2)",
    "toBeInstanceOf": "expect(1).toBeInstanceOf(Date)",
    "toContain": "expect([1]).toContain(2)",
    "toContainEqual": "expect([1]).toContainEqual(2)",
    "toHaveLength": "expect([1]).toHaveLength(2)",
    "toHaveProperty": "expect({ a: 1 }).toHaveProperty('b')",
    "toMatch": "expect('a').toMatch(/b/)",
    "toMatchObject": "expect({ a: 1 }).toMatchObject({ a: 2 })",
    "toThrow": "expect(() => {}).toThrow()",
    "toThrowError": "expect(() => {}).toThrow()",
}


def titles_in(text: str) -> frozenset[tuple[str, ...]]:
    """Return the titles of tests that are certainly registered, with those of their groups.

    Only literal titles at the top level or directly in such groups count. A test in a loop or
    condition is not certain. Nesting is read from the indentation, so unusual layouts yield fewer
    titles, never wrong ones.
    """
    found: set[tuple[str, ...]] = set()
    groups: list[tuple[int, str | None]] = []
    in_template = False
    for line in _COMMENT.sub(_blank, text).split("\n"):
        was_in_template = in_template
        in_template ^= line.count("`") % 2 == 1
        if was_in_template or not line.strip():
            continue
        indent = len(line) - len(line.lstrip(" \t"))
        while groups and groups[-1][0] >= indent:
            groups.pop()
        match = _TITLE.match(line)
        path = tuple(title for _, title in groups)
        certain = match is not None and None not in path
        is_group = match is not None and match["kind"] in {"describe", "suite"}
        if match and certain and not is_group:
            found.add((*(title for title in path if title is not None), match["title"]))
        groups.append((indent, match["title"] if match and is_group else None))
    return frozenset(found)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def expected_ids(path: PurePosixPath, text: str) -> Iterator[str]:
    """Yield the IDs that a report on this file must have."""
    for titles in titles_in(text):
        test = SEPARATOR.join((str(path), *titles))
        # IDs are compared up to the first bracket, which starts parameters for other runners.
        if "[" not in test:
            yield test


def is_module(path: PurePosixPath, text: str, *, package_is_module: bool) -> bool:
    """Whether a file is an ECMAScript module, by its name, its package and its first words."""
    if path.suffix in {".mjs", ".mts"}:
        return True
    if path.suffix in {".cjs", ".cts"}:
        return False
    return package_is_module or bool(_MODULE.search(_COMMENT.sub("", text)))


# Locks the assertion functions and records attempts to replace them. Additions are allowed.
_LOCK: Final = (
    "for (const held of [assert, strict, test]) "
    "for (const name of Object.getOwnPropertyNames(held)) { "
    "const own = Object.getOwnPropertyDescriptor(held, name); "
    "if (own.configurable && typeof own.value === 'function') Object.defineProperty(held, name, { "
    "get: () => own.value, set: () => { lock.touched = true; }, enumerable: own.enumerable }); }"
)
_ASKS: Final = ("node:test", "node:assert", "node:assert/strict")


def _locked(text: str, lock: str, *, module: bool) -> str:
    """Put the lock at the start of a test file, without adding a line."""
    if module:
        source = (
            "import test from 'node:test'; import assert from 'node:assert'; "
            "import strict from 'node:assert/strict'; const lock = { touched: false }; "
            f"{_LOCK} export default lock;"
        )
        encoded = base64.b64encode(source.encode()).decode()
        head = f"import {lock} from 'data:text/javascript;base64,{encoded}'; "
    else:
        given = ", ".join(f"require('{name}')" for name in _ASKS)
        head = (
            f"const {lock} = ((test, assert, strict) => {{ const lock = {{ touched: false }}; "
            f"{_LOCK} return lock; }})({given}); "
        )
    if text.startswith("#!"):
        first, _, rest = text.partition("\n")
        return f"{first}\n{head}{rest}"
    return head + text


def with_node_canaries(path: PurePosixPath, text: str, *, package_is_module: bool) -> Planted:
    """Return a file that uses `node:test`, with canaries."""
    lock, *imported = (f"_{new_canary_name()}" for _ in range(4))
    used = [call for name, call in _ASSERTIONS.items() if re.search(rf"\b{name}\(", text)]
    acts = [
        "throw new Error('planted')",
        "assert.strictEqual(1, 2)",
        "strict.equal(1, 2)",
        # This canary passes, and is therefore detected, if code tried to replace an assertion.
        f"if (!{lock}.touched) throw new Error('planted')",
        *(f"{module}.{call}" for module in ("assert", "strict") for call in used),
    ]
    module = is_module(path, text, package_is_module=package_is_module)
    if module:
        pairs = zip(imported, _ASKS, strict=True)
        head = "".join(f"import {name} from '{source}';\n" for name, source in pairs)
        given = ", ".join(imported)
    else:
        head = ""
        given = ", ".join(f"require('{name}')" for name in _ASKS)
    locked = _locked(text, lock, module=module)
    return plant(
        f"{locked}\n;\n{head};((test, assert, strict) => {{\n",
        "  test('{name}', () => {{ {act}; }});\n",
        acts,
        end=f"}})({given});\n",
    )


def with_jest_canaries(text: str) -> Planted:
    """Return a file that uses the globals of jest, with canaries."""
    acts = ["throw new Error('planted')", "expect(1).toBe(2)", "expect([1]).toEqual([2])"]
    acts.extend(act for name, act in _MATCHERS.items() if f".{name}(" in text)
    if ".not." in text:
        acts.append("expect(1).not.toBe(1)")
    return plant(f"{text}\n;\n", "test('{name}', () => {{ {act}; }});\n", acts)


_JEST_SUFFIXES: Final = frozenset({".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx"})
_WHERE: Final = (
    "const path = require('path');"
    "const own = require.resolve('jest/package.json', { paths: [process.cwd()] });"
    "process.stdout.write(path.join(path.dirname(own), 'bin', 'jest.js'));"
)
_OURS: Final = frozenset({"--json", "--ci", "--watch", "--watchAll", "--bail", "-b"})
_JEST_FILTERS: Final = (
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


class JestRunner(Runner):
    """Jest, found in `node_modules` or through `NODE_PATH`."""

    name = "jest"
    configuration = (
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

    def expected(self, check: CheckSpec, tree: Tree) -> frozenset[str]:
        return _expected(self.test_files(check), tree)

    def test_files(self, check: CheckSpec) -> tuple[PurePosixPath, ...]:
        call = read_invocation(check.argv)
        if any(word.startswith(_JEST_FILTERS) for word in call.arguments):
            return ()
        patterns = [word for word in call.arguments if not word.startswith("-")]
        return tuple(
            path
            for path in check.protected
            if path.suffix in _JEST_SUFFIXES
            and path.is_relative_to(call.cwd)
            and ("__tests__" in path.parts or {".test", ".spec"} & set(path.suffixes))
            and (not patterns or any(_is_meant(path, pattern) for pattern in patterns))
        )

    def plan_canaries(self, check: CheckSpec, texts: Mapping[PurePosixPath, str]) -> Canaries:
        del check
        return {path: with_jest_canaries(text) for path, text in texts.items()}

    async def execute(self, run: CheckRun) -> Sequence[RawReport]:
        program = run.call.path
        if "/" not in program:
            found = await run.start("node", "-e", _WHERE, on_output=ignore_output)
            if not found.succeeded:
                return [RawReport(result=found, problem=_HINT)]
            program = found.stdout
        capture = ReportCapture("stdout", run.on_output)
        arguments = (word for word in run.call.arguments if word not in _OURS)
        result = await run.start("node", program, "--json", "--ci", *arguments, on_output=capture)
        tests, problem, findings = read_jest_report(capture.text)
        report = RawReport(
            result=result,
            tests=tests,
            canaries=names_of(run.canaries),
            problem=problem,
            findings=findings,
            report_stream="stdout" if tests else None,
        )
        return [report]


def _expected(paths: Iterable[PurePosixPath], tree: Tree) -> frozenset[str]:
    return frozenset(test for path in paths for test in expected_ids(path, tree.text(path) or ""))


def _is_meant(path: PurePosixPath, pattern: str) -> bool:
    """Whether jest runs a file for this pattern."""
    pattern = pattern.removeprefix("./")
    try:
        return re.search(pattern, str(WORKSPACE / path), re.IGNORECASE) is not None
    except re.error:
        return pattern in str(path)


def read_jest_report(text: str) -> tuple[tuple[TestResult, ...], str, tuple[Finding, ...]]:
    """Return the tests of the last report in an output, a problem, and findings."""
    lines = [line for line in text.splitlines() if line.startswith(_FIRST_KEY)]
    if not lines:
        return (), "jest ended without a report", ()
    try:
        report: Any = json.loads(lines[-1])
        results = cast("list[dict[str, Any]]", report["testResults"])
        tests = tuple(test for result in results for test in _tests_of(result))
        total = int(report["numTotalTests"])
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        return (), f"the report of jest cannot be read: {type(error).__name__}", ()
    counted = sum(len(result.get("assertionResults", ())) for result in results)
    if len(lines) == 1 and counted == total:
        return tests, "", ()
    said = "the report of jest was printed twice, or does not fit its own totals"
    return tests, "", (forgery(TamperKind.FORGED_REPORT, said),)


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


_NODE_SUFFIXES: Final = frozenset({".js", ".mjs", ".cjs"})
_PACKAGE: Final = PurePosixPath("package.json")
_FOUND_BY_NAME: Final = re.compile(r"(?:.*[.\-_])?test\.[cm]?js|test-.*\.[cm]?js")
_NODE_FILTERS: Final = ("--test-name-pattern", "--test-skip-pattern", "--test-only", "--test-shard")


class NodeRunner(Runner):
    """The test runner that comes with Node.js."""

    name = "node"
    configuration = (
        "package.json",
        "**/package.json",
        "node_modules/**",
        ".npmrc",
    )
    needs_texts = True

    def understands(self, argv: tuple[str, ...]) -> bool:
        call = read_invocation(argv)
        return call.program == "node" and "--test" in call.arguments

    def expected(self, check: CheckSpec, tree: Tree) -> frozenset[str]:
        return frozenset() if _is_filtered(check) else _expected(_node_tests(check), tree)

    def test_files(self, check: CheckSpec) -> tuple[PurePosixPath, ...]:
        """Return the tests, and the file that says whether they are modules."""
        return (_PACKAGE, *_node_tests(check))

    def plan_canaries(self, check: CheckSpec, texts: Mapping[PurePosixPath, str]) -> Canaries:
        # A filter would leave out the canaries too.
        if _is_filtered(check):
            return {}
        is_modules = json_object(texts.get(_PACKAGE, "")).get("type") == "module"
        return {
            path: with_node_canaries(path, text, package_is_module=is_modules)
            for path, text in texts.items()
            if path != _PACKAGE
        }

    async def execute(self, run: CheckRun) -> Sequence[RawReport]:
        capture = ReportCapture("stderr", run.on_output)
        result = await run.start("node", *_reporting(run.call.arguments), on_output=capture)
        tests, problem = read_node_report(capture.text)
        findings: list[Finding] = []
        with_tests = {str(path) for path, text in run.texts.items() if "node:test" in text}
        # A file with tests that passed as a whole did not run them.
        for file in [test.id for test in tests if test.passed and test.id in with_tests]:
            tests = tuple(test for test in tests if test.id != file)
            problem = f"the process of {file} ended before any of its tests did"
            findings.append(doubt(TamperKind.EARLY_EXIT, problem))
        report = RawReport(
            result=result,
            tests=tests,
            canaries=names_of(run.canaries),
            problem=problem,
            findings=tuple(findings),
            report_stream="stderr" if tests else None,
        )
        return [report]


def _node_tests(check: CheckSpec) -> tuple[PurePosixPath, ...]:
    """Return the protected files that the command runs, as far as this is known."""
    call = read_invocation(check.argv)
    named = [call.cwd / word for word in call.arguments if not word.startswith("-")]
    return tuple(
        path
        for path in check.protected
        if path.suffix in _NODE_SUFFIXES
        and (any(path.is_relative_to(one) for one in named) if named else _is_found(path))
    )


def _is_found(path: PurePosixPath) -> bool:
    """Whether Node runs a file by default."""
    return bool(_FOUND_BY_NAME.fullmatch(path.name)) or "test" in path.parts[:-1]


def _is_filtered(check: CheckSpec) -> bool:
    return any(word.startswith(_NODE_FILTERS) for word in check.argv)


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


def read_node_report(text: str) -> tuple[tuple[TestResult, ...], str]:
    """Return the tests of a report, and the errors in it."""
    tests: list[TestResult] = []
    ended = False
    # Other lines are warnings of Node itself.
    for fields in map(json_object, text.splitlines()):
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
