"""Build a CMake project and run its tests, with reports of their frameworks and of CTest.

C++ test frameworks are detected by their includes; each has its own canaries and report format.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.execution import Command, ExecutionResult
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import Grade, TestResult, TestStatus
from assay.contracts.workspace import Tree
from assay.verify.canaries import Plan, new_canary_name, planted, read_texts
from assay.verify.parse_command import read_invocation
from assay.verify.report_checks import (
    RawReport,
    ReportCapture,
    a_test,
    combine,
    conclude,
    with_doubt,
)
from assay.verify.runners.junit import Element, UnreadableXmlError, read_junit, read_xml
from assay.verify.spec import CheckSpec, Observation

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
    failed = status in {TestStatus.FAILED, TestStatus.ERROR}
    return a_test(
        case.attributes.get("name", ""), status, detail="\n".join(accounts) if failed else ""
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


def with_canaries(text: str, framework: Framework) -> tuple[bytes, frozenset[str]]:
    """Return a file with added canaries, and their names."""
    own = {new_canary_name().replace("_", "x"): act for act in framework.failures}
    added = "".join(framework.canary.format(name=name, act=act) for name, act in own.items())
    return f"{text}\n{added}".encode(), frozenset(own)


_BUILD: Final = "/tmp/cmake-build"
_REPORT: Final = "/tmp/cmake-report.xml"
_QUERY: Final = (
    f"mkdir -p {_BUILD}/.cmake/api/v1/query && touch {_BUILD}/.cmake/api/v1/query/codemodel-v2"
)
_TARGETS: Final = f"cat {_BUILD}/.cmake/api/v1/reply/target-*.json"
_SOURCES: Final = frozenset({".c", ".cc", ".cpp", ".cxx"})
_PART_OF_CHAIN: Final = frozenset({"cmake", "ctest", "make", "ninja", "mkdir", "cd"})
_DEFINITION: Final = re.compile(r"-D\s*(?P<definition>[A-Za-z_]\w*(?::\w+)?=.*)")
_MORE_THAN_A_CHAIN: Final = re.compile(r"[|;<>$`()]|(?<!&)&(?!&)|&&&")
_SPACE: Final = re.compile(r"\s*")
_ERROR_LINE: Final = re.compile(r"^.*\berror\b:?.*$", re.MULTILINE | re.IGNORECASE)
_SMALLEST_TIMEOUT_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Project:
    """The project settings from a command."""

    folder: PurePosixPath
    definitions: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """One program that CMake builds."""

    name: str
    artifact: str
    """The path from the build folder."""
    sources: frozenset[PurePosixPath]
    """Paths from the workspace root."""


class CTestRunner:
    """CMake, CTest, and the frameworks Catch2, doctest and GoogleTest."""

    name = "ctest"
    most = Grade.PROVEN
    configuration: tuple[str, ...] = (
        "**/CMakeLists.txt",
        "**/*.cmake",
        "**/CMakePresets.json",
        "**/CMakeUserPresets.json",
        "**/catch.hpp",
        "**/catch_amalgamated.*",
        "**/doctest.h",
    )

    def understands(self, argv: tuple[str, ...]) -> bool:
        return _project(argv) is not None

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        found: set[str] = set()
        for path in _test_files(order):
            text = tree.text(path) or ""
            framework = framework_of(text)
            found.update(named_tests(text, framework) if framework else ())
        # IDs are compared up to the first bracket, which starts parameters for other runners.
        return frozenset(name for name in found if "[" not in name)

    async def run(
        self, order: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        texts = await read_texts(sandbox, _test_files(order))
        frameworks = {path: framework_of(text) for path, text in texts.items()}
        known = {path: framework for path, framework in frameworks.items() if framework}
        canaries: dict[PurePosixPath, frozenset[str]] = {}
        files: dict[PurePosixPath, bytes] = {}
        for path, framework in known.items() if order.canaries else ():
            files[path], canaries[path] = with_canaries(texts[path], framework)
        check = _Check(order, sandbox, on_output)
        async with planted(sandbox, Plan(files=files)) as findings:
            observation = await check.build_and_run(known, canaries)
        whole = (*observation.findings, *findings)
        return with_doubt(order, Observation(report=observation.report, findings=whole))


class _Check:
    """One check, from the configuration to the last report."""

    def __init__(self, order: CheckSpec, sandbox: Sandbox, on_output: OnOutput) -> None:
        self._order = order
        self._sandbox = sandbox
        self._on_output = on_output
        self._project = _project(order.argv) or _Project(
            folder=PurePosixPath(), definitions=(), env={}
        )
        self._left_s = order.timeout_s

    async def build_and_run(
        self,
        known: Mapping[PurePosixPath, Framework],
        canaries: Mapping[PurePosixPath, frozenset[str]],
    ) -> Observation:
        await self._start(("sh", "-c", _QUERY))
        configured = await self._start(
            ("cmake", "-S", ".", "-B", _BUILD, *(f"-D{one}" for one in self._project.definitions)),
            on_output=self._on_output,
        )
        if not configured.succeeded:
            return self._not_built(configured, "cmake could not configure the project")
        described = ReportCapture("stdout", ignore_output)
        await self._start(("sh", "-c", _TARGETS), on_output=described)
        targets = [
            target
            for target in read_targets(described.text, self._project.folder)
            if target.sources & known.keys()
        ]
        # A target that runs the tests during the build would run them without a report.
        registered = bool(await self._registered())
        only = () if registered or not targets else ("--target", *(one.name for one in targets))
        built = await self._start(
            ("cmake", "--build", _BUILD, "--parallel", "2", *only), on_output=self._on_output
        )
        if not built.succeeded:
            return self._not_built(built, "the tests could not be built")
        own = {f"{_BUILD}/{target.artifact}" for target in targets}
        others = [program for program in await self._registered() if program not in own]
        parts = [await self._run_program(target, known, canaries) for target in targets]
        # Canaries would make CTest's tests fail, and one of those may be a complete program.
        if (others or not targets) and not canaries:
            parts.append(await self._run_ctest())
        return combine(self._order, CTestRunner.name, parts)

    async def _registered(self) -> tuple[str, ...]:
        """Return the program of each test in CTest; empty for a program that is not built yet."""
        listener = ReportCapture("stdout", ignore_output)
        await self._start(
            ("ctest", "--show-only=json-v1", "--test-dir", _BUILD), on_output=listener
        )
        try:
            tests = cast("list[dict[str, Any]]", json.loads(listener.text)["tests"])
            return tuple(str((test.get("command") or [""])[0]) for test in tests)
        except (ValueError, KeyError, TypeError, AttributeError):
            return ()

    async def _run_program(
        self,
        target: _Target,
        known: Mapping[PurePosixPath, Framework],
        canaries: Mapping[PurePosixPath, frozenset[str]],
    ) -> Observation:
        own = sorted(target.sources & known.keys())
        framework = known[own[0]]
        arguments = (word.format(report=_REPORT) for word in framework.arguments)
        program = f"{_BUILD}/{target.artifact}"
        await self._start(("rm", "-f", _REPORT))
        result = await self._start((program, *arguments), on_output=self._on_output)
        tests, problem = framework.read(await self._report())
        account = RawReport(
            tests=tests,
            canaries=frozenset(name for path in own for name in canaries.get(path, ())),
            problem=problem and f"{target.name} ended without a whole report",
        )
        return conclude(self._order, CTestRunner.name, result, account)

    async def _run_ctest(self) -> Observation:
        await self._start(("rm", "-f", _REPORT))
        result = await self._start(
            (
                "ctest", "--test-dir", _BUILD, "--output-on-failure", "--no-tests=error",
                "--output-junit", _REPORT,
            ),
            on_output=self._on_output,
        )  # fmt: skip
        tests, problem = read_junit(await self._report())
        named = tuple(
            a_test(f"ctest::{test.id}", test.status, message=test.message, detail=test.detail)
            for test in tests
        )
        return conclude(
            self._order, CTestRunner.name, result, RawReport(tests=named, problem=problem)
        )

    def _not_built(self, result: ExecutionResult, what: str) -> Observation:
        line = _ERROR_LINE.search(f"{result.stderr}\n{result.stdout}")
        problem = f"{what}: {line[0].strip()}" if line else what
        return conclude(self._order, CTestRunner.name, result, RawReport(problem=problem))

    async def _report(self) -> bytes:
        kept = bytearray()
        await self._sandbox.run(
            Command(argv=("cat", _REPORT)), on_output=lambda chunk: kept.extend(chunk.data)
        )
        return bytes(kept)

    async def _start(
        self, argv: tuple[str, ...], *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        result = await self._sandbox.run(
            Command(
                argv=argv,
                env=self._project.env,
                cwd=self._project.folder,
                timeout_s=max(self._left_s, _SMALLEST_TIMEOUT_S),
            ),
            on_output=on_output,
        )
        self._left_s -= result.duration_s
        return result


def _test_files(order: CheckSpec) -> tuple[PurePosixPath, ...]:
    return tuple(path for path in order.protected if path.suffix in _SOURCES)


def _project(argv: tuple[str, ...]) -> _Project | None:
    """Return the settings of a command if it is `ctest` or a chain of cmake, make and ctest."""
    call = read_invocation(argv)
    if call.program == "ctest":
        return _Project(folder=call.cwd, definitions=(), env=call.env)
    if argv[:-1] != ("bash", "-c") or _MORE_THAN_A_CHAIN.search(argv[-1]):
        return None
    try:
        steps = [shlex.split(step) for step in argv[-1].split("&&")]
    except ValueError:
        return None
    programs = [step[0] for step in steps if step]
    # A command that only builds is judged by its exit code.
    if not _PART_OF_CHAIN.issuperset(programs) or not {"cmake", "ctest"}.issubset(programs):
        return None
    return _read_chain(steps)


def _read_chain(steps: list[list[str]]) -> _Project:
    folder = PurePosixPath()
    definitions: list[str] = []
    for step in steps:
        if step[:1] == ["cd"] and len(step) > 1 and folder == PurePosixPath():
            folder = _inside(step[1])
        for word, following in zip(step, [*step[1:], ""], strict=True):
            match = _DEFINITION.fullmatch(f"-D{following}" if word == "-D" else word)
            if step[0] == "cmake" and match:
                definitions.append(match["definition"])
            if step[0] == "cmake" and word == "-S":
                folder = _inside(following)
    return _Project(folder=folder, definitions=tuple(dict.fromkeys(definitions)), env={})


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
    position = _after_space(text, 0)
    while position < len(text):
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        targets.extend(_target(value, folder))
        position = _after_space(text, end)
    return tuple(targets)


def _after_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _target(value: Any, folder: PurePosixPath) -> tuple[_Target, ...]:
    match value:
        case {
            "type": "EXECUTABLE",
            "name": str(name),
            "artifacts": [{"path": str(artifact)}, *_],
            "sources": [*sources],
        }:
            entries = cast("list[dict[str, Any]]", sources)
            paths = frozenset(folder / str(entry.get("path", "")) for entry in entries)
            return (_Target(name=name, artifact=artifact, sources=paths),)
        case _:
            return ()
