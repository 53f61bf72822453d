"""Build a CMake project and run its tests, with reports of their frameworks and of CTest.

C++ test frameworks are detected by their includes; each has its own canaries and report format.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.execution import ExecutionResult
from assay.contracts.ports import ignore_output
from assay.contracts.verdict import TestResult, TestStatus
from assay.contracts.workspace import Tree
from assay.verify.parse_command import read_chain, read_invocation
from assay.verify.report_checks import BAD, RawReport, ReportCapture, a_test
from assay.verify.runner import Canaries, CheckRun, Runner, names_of, plant
from assay.verify.runners.junit import Element, UnreadableXmlError, read_junit, read_xml
from assay.verify.spec import CheckSpec

_Report = tuple[tuple[TestResult, ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One test framework."""

    name: str
    include: re.Pattern[str]
    test: re.Pattern[str]
    """A test at the start of a line, with its name."""
    canary: str
    """The source of a canary, with placeholders for its name and its action."""
    failures: tuple[str, ...]
    arguments: tuple[str, ...]
    """The arguments that write a report to `{report}`."""
    read: Callable[[bytes], _Report]


def _read_cases(document: bytes) -> _Report:
    """Read the XML of Catch2 and doctest, which have a result for each test case."""
    try:
        root = read_xml(document)
    except UnreadableXmlError as error:
        return (), f"the report cannot be read: {error}"
    return tuple(_case(case) for case in root.find_all("TestCase")), ""


def _case(case: Element) -> TestResult:
    outcome: dict[str, str] = {}
    for child in case.children:
        if child.tag in {"OverallResult", "OverallResultsAsserts"}:
            outcome.update(child.attributes)
    success = outcome.get("success", outcome.get("test_case_success"))
    skipped = case.attributes.get("skipped") == "true" or outcome.get("skips", "0") != "0"
    if skipped:
        status = TestStatus.SKIPPED
    elif success == "true":
        status = TestStatus.PASSED
    elif success == "false":
        status = TestStatus.FAILED
    else:
        status = TestStatus.ERROR  # it was begun and did not end
    accounts = [_account(child) for tag in _ACCOUNTS for child in case.find_all(tag)]
    return a_test(
        case.attributes.get("name", ""), status, detail="\n".join(accounts) if status in BAD else ""
    )


_ACCOUNTS: Final = ("Expression", "Exception", "Failure", "FatalErrorCondition", "Message")


def _account(element: Element) -> str:
    """Return the failure at one location, the essential part first."""
    place = f"{element.attributes.get('filename', '')}:{element.attributes.get('line', '')}"
    parts = {child.tag: " ".join(child.text.split()) for child in element.children}
    told = " ".join(element.text.split())
    if "Original" in parts:
        check = element.attributes.get("type", "CHECK")
        thrown = f", but it threw {parts['Exception']}" if "Exception" in parts else ""
        told = f"{check}({parts['Original']}) is {parts.get('Expanded', '?')}{thrown}"
    return f"{told} ({place})"


_TEST_CASE: Final = re.compile(r'^TEST_CASE\(\s*"(?P<name>[^"\\\n]+)"', re.MULTILINE)
FRAMEWORKS: Final = (
    Framework(
        name="doctest",
        include=re.compile(r"#\s*include\s*[<\"](?:.*/)?doctest\.h"),
        test=_TEST_CASE,
        canary='TEST_CASE("{name}") {{ {act} }}\n',
        failures=("REQUIRE(1 == 2);", "CHECK(1 == 2);", "CHECK_FALSE(1 == 1);", "throw 1;"),
        arguments=("--reporters=xml", "--out={report}"),
        read=_read_cases,
    ),
    Framework(
        name="Catch2",
        include=re.compile(r"#\s*include\s*[<\"](?:.*/)?catch(?:_[a-z_]+)?\.hpp"),
        test=_TEST_CASE,
        canary='TEST_CASE("{name}") {{ {act} }}\n',
        failures=("REQUIRE(1 == 2);", "CHECK(1 == 2);", "REQUIRE_FALSE(1 == 1);", "throw 1;"),
        arguments=("--reporter", "xml", "--out", "{report}"),
        read=_read_cases,
    ),
    Framework(
        name="GoogleTest",
        include=re.compile(r"#\s*include\s*[<\"](?:.*/)?g(?:test|mock)\.h"),
        test=re.compile(r"^TEST(?:_F)?\(\s*(?P<group>\w+)\s*,\s*(?P<name>\w+)\s*\)", re.MULTILINE),
        canary="TEST({name}, ends) {{ {act} }}\n",
        failures=("ASSERT_EQ(1, 2);", "EXPECT_EQ(1, 2);", "EXPECT_TRUE(1 == 2);", "FAIL();"),
        arguments=("--gtest_output=xml:{report}",),
        read=read_junit,
    ),
)
_COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*|R\"\((?:.|\n)*?\)\"", re.DOTALL)
_CONDITION: Final = re.compile(r"^\s*#\s*(?P<what>ifdef|ifndef|if|endif)\b")


def framework_of(text: str) -> Framework | None:
    """Return the framework whose header a file includes."""
    return next((known for known in FRAMEWORKS if known.include.search(text)), None)


def named_tests(text: str, framework: Framework) -> tuple[str, ...]:
    """Return the reported names of tests that no `#if` can exclude."""
    names: list[str] = []
    for match in framework.test.finditer(_unconditional(_COMMENT.sub("", text))):
        group = match.groupdict().get("group")
        if not match["name"].startswith("DISABLED_"):
            names.append(f"{group}::{match['name']}" if group else match["name"])
    return tuple(names)


def _unconditional(text: str) -> str:
    depth = 0
    kept: list[str] = []
    for line in text.split("\n"):
        condition = _CONDITION.match(line)
        if condition:
            depth += -1 if condition["what"] == "endif" else 1
        elif depth <= 0:
            kept.append(line)
    return "\n".join(kept)


_BUILD: Final = "/tmp/cmake-build"
_REPORT: Final = "/tmp/cmake-report.xml"
_QUERY: Final = (
    f"mkdir -p {_BUILD}/.cmake/api/v1/query && touch {_BUILD}/.cmake/api/v1/query/codemodel-v2"
)
_TARGETS: Final = f"cat {_BUILD}/.cmake/api/v1/reply/target-*.json"
_SOURCES: Final = frozenset({".c", ".cc", ".cpp", ".cxx"})
_PART_OF_CHAIN: Final = frozenset({"cmake", "ctest", "make", "ninja", "mkdir", "cd"})
_DEFINITION: Final = re.compile(r"-D\s*(?P<definition>[A-Za-z_]\w*(?::\w+)?=.*)")
_ERROR_LINE: Final = re.compile(r"^.*\berror\b:?.*$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Project:
    """The project settings from a command."""

    folder: PurePosixPath
    definitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """One program that CMake builds."""

    name: str
    artifact: str
    """The path from the build folder."""
    sources: frozenset[PurePosixPath]
    """Paths from the workspace root."""


class CTestRunner(Runner):
    """CMake, CTest, and the frameworks Catch2, doctest and GoogleTest."""

    name = "ctest"
    configuration = (
        "**/CMakeLists.txt",
        "**/*.cmake",
        "**/CMakePresets.json",
        "**/CMakeUserPresets.json",
        "**/catch.hpp",
        "**/catch_amalgamated.*",
        "**/doctest.h",
    )
    needs_texts = True

    def understands(self, argv: tuple[str, ...]) -> bool:
        return _project(argv) is not None

    def expected(self, check: CheckSpec, tree: Tree) -> frozenset[str]:
        found: set[str] = set()
        for path in self.test_files(check):
            text = tree.text(path) or ""
            framework = framework_of(text)
            found.update(named_tests(text, framework) if framework else ())
        # IDs are compared up to the first bracket, which starts parameters for other runners.
        return frozenset(name for name in found if "[" not in name)

    def test_files(self, check: CheckSpec) -> tuple[PurePosixPath, ...]:
        return tuple(path for path in check.protected if path.suffix in _SOURCES)

    def plan_canaries(self, check: CheckSpec, texts: Mapping[PurePosixPath, str]) -> Canaries:
        del check
        return {
            path: plant(
                f"{text}\n",
                framework.canary,
                framework.failures,
                rename=lambda name: name.replace("_", "x"),
            )
            for path, text in texts.items()
            if (framework := framework_of(text)) is not None
        }

    async def execute(self, run: CheckRun) -> Sequence[RawReport]:
        project = _project(run.check.argv) or _Project(folder=run.cwd)
        run.cwd = project.folder
        frameworks = {
            path: framework
            for path, text in run.texts.items()
            if (framework := framework_of(text)) is not None
        }
        await run.output_of("sh", "-c", _QUERY)
        definitions = (f"-D{definition}" for definition in project.definitions)
        result = await run.start("cmake", "-S", ".", "-B", _BUILD, *definitions)
        if not result.succeeded:
            return [_not_built(result, "cmake could not configure the project")]
        described = (await run.output_of("sh", "-c", _TARGETS)).decode(errors="replace")
        targets = [
            target
            for target in read_targets(described, project.folder)
            if target.sources & frameworks.keys()
        ]
        # A target that runs the tests during the build would run them without a report.
        registered = bool(await _registered(run))
        only = () if registered or not targets else ("--target", *(one.name for one in targets))
        result = await run.start("cmake", "--build", _BUILD, "--parallel", "2", *only)
        if not result.succeeded:
            return [_not_built(result, "the tests could not be built")]
        own = {f"{_BUILD}/{target.artifact}" for target in targets}
        others = [program for program in await _registered(run) if program not in own]
        reports = [await _run_program(run, target, frameworks) for target in targets]
        # Canaries would make CTest's tests fail, and one of those may be a complete program.
        if (others or not targets) and not run.canaries:
            reports.append(await _run_ctest(run))
        return reports


async def _registered(run: CheckRun) -> tuple[str, ...]:
    """Return the program of each test in CTest; empty for a program that is not built yet."""
    capture = ReportCapture("stdout", ignore_output)
    await run.start("ctest", "--show-only=json-v1", "--test-dir", _BUILD, on_output=capture)
    try:
        tests = cast("list[dict[str, Any]]", json.loads(capture.text)["tests"])
        return tuple(str((test.get("command") or [""])[0]) for test in tests)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


async def _run_program(
    run: CheckRun, target: "_Target", frameworks: Mapping[PurePosixPath, Framework]
) -> RawReport:
    own = sorted(target.sources & frameworks.keys())
    framework = frameworks[own[0]]
    arguments = (word.format(report=_REPORT) for word in framework.arguments)
    await run.output_of("rm", "-f", _REPORT)
    result = await run.start(f"{_BUILD}/{target.artifact}", *arguments)
    tests, problem = framework.read(await run.output_of("cat", _REPORT))
    return RawReport(
        result=result,
        tests=tests,
        canaries=names_of({path: run.canaries[path] for path in own if path in run.canaries}),
        problem=problem and f"{target.name} ended without a whole report",
    )


async def _run_ctest(run: CheckRun) -> RawReport:
    await run.output_of("rm", "-f", _REPORT)
    result = await run.start(
        "ctest", "--test-dir", _BUILD, "--output-on-failure", "--no-tests=error",
        "--output-junit", _REPORT,
    )  # fmt: skip
    tests, problem = read_junit(await run.output_of("cat", _REPORT))
    named = tuple(
        a_test(f"ctest::{test.id}", test.status, message=test.message, detail=test.detail)
        for test in tests
    )
    return RawReport(result=result, tests=named, problem=problem)


def _not_built(result: ExecutionResult, what: str) -> RawReport:
    line = _ERROR_LINE.search(f"{result.stderr}\n{result.stdout}")
    return RawReport(result=result, problem=f"{what}: {line[0].strip()}" if line else what)


def _project(argv: tuple[str, ...]) -> _Project | None:
    """Return the settings of a command if it is `ctest` or a chain of cmake, make and ctest."""
    call = read_invocation(argv)
    if call.program == "ctest":
        return _Project(folder=call.cwd)
    steps = read_chain(argv)
    programs = {step[0] for step in steps}
    # A command that only builds is judged by its exit code.
    if not programs <= _PART_OF_CHAIN or not {"cmake", "ctest"} <= programs:
        return None
    folder = PurePosixPath()
    definitions: list[str] = []
    for step in steps:
        if step[0] == "cd" and len(step) > 1 and folder == PurePosixPath():
            folder = _inside(step[1])
        for word, following in zip(step, [*step[1:], ""], strict=True):
            match = _DEFINITION.fullmatch(f"-D{following}" if word == "-D" else word)
            if step[0] == "cmake" and match:
                definitions.append(match["definition"])
            if step[0] == "cmake" and word == "-S":
                folder = _inside(following)
    return _Project(folder=folder, definitions=tuple(dict.fromkeys(definitions)))


def _inside(folder: str) -> PurePosixPath:
    path = PurePosixPath(folder)
    # `mkdir build && cd build && cmake ..` is about the parent folder.
    outside = (
        path.is_absolute() or ".." in path.parts or path.name.startswith(("build", "cmake-build"))
    )
    return PurePosixPath() if outside else path


def read_targets(text: str, folder: PurePosixPath) -> tuple[_Target, ...]:
    """Return the programs in a sequence of JSON documents of CMake's file API."""
    decoder = json.JSONDecoder()
    targets: list[_Target] = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        match value:
            case {
                "type": "EXECUTABLE",
                "name": str(name),
                "artifacts": [{"path": str(artifact)}, *_],
                "sources": [*sources],
            }:
                entries = cast("list[dict[str, Any]]", sources)
                paths = frozenset(folder / str(entry.get("path", "")) for entry in entries)
                targets.append(_Target(name=name, artifact=artifact, sources=paths))
            case _:
                pass
    return tuple(targets)
