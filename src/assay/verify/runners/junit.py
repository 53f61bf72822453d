"""Runners whose report is JUnit's XML, and the reader of that format.

Gradle and Maven write it themselves. For JUnit's console launcher, Assay compiles the tests and
adds canaries. Runners of other languages use `read_junit` too. The XML comes from untrusted
programs: no document types, no entities, limited size. The standard library's tree parsers
expand entities, so a few bytes can become gigabytes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final
from xml.parsers import expat

from assay.contracts.errors import WorkspaceError
from assay.contracts.execution import WORKSPACE
from assay.contracts.ports import Sandbox
from assay.contracts.verdict import Grade, TestResult, TestStatus
from assay.contracts.workspace import Tree
from assay.verify.parse_command import read_chain, read_invocation
from assay.verify.report_checks import RawReport, a_test
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

_MAX_DEPTH: Final = 64
_MAX_ELEMENTS: Final = 2_000_000
_MAX_TEXT_CHARS: Final = 64_000
"""The maximum for one element; the rest is left out."""
_DECLARATION: Final = re.compile(r"^\s*<\?xml[^>]*\?>")
_NOT_XML: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


class UnreadableXmlError(ValueError):
    """The document is not XML, or has an unsupported form."""


@dataclass(slots=True, kw_only=True)
class Element:
    """One element, with the text directly in it."""

    tag: str
    attributes: dict[str, str]
    children: "list[Element]" = field(default_factory=list["Element"])
    text: str = ""

    def find_all(self, tag: str) -> "Iterator[Element]":
        """Yield all descendants with this tag, in order."""
        for child in self.children:
            if child.tag == tag:
                yield child
            yield from child.find_all(tag)


def read_xml(document: bytes) -> Element:
    """Return the root of a document.

    Raises:
        UnreadableXmlError: If it is malformed, too deep or too large, or has a document type.
    """
    # The declared encoding is ignored: runners write UTF-8, and tests print arbitrary bytes.
    text = _NOT_XML.sub("\ufffd", document.decode("utf-8", errors="replace"))
    builder = _Builder()
    parser = expat.ParserCreate(encoding="utf-8")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = builder.refuse_document_type
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.add_text
    try:
        parser.Parse(_DECLARATION.sub("", text).encode(), True)  # noqa: FBT003 - the C function's own form
    except expat.ExpatError as error:
        raise UnreadableXmlError(f"not well-formed: {error}") from error
    return builder.root.children[0]


class _Builder:
    def __init__(self) -> None:
        self.root = Element(tag="", attributes={})
        self._open = [self.root]
        self._elements = 0

    def refuse_document_type(self, *_: object) -> None:
        raise UnreadableXmlError("it has a document type")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        if len(self._open) > _MAX_DEPTH or self._elements > _MAX_ELEMENTS:
            raise UnreadableXmlError("it is too deep or too large")
        element = Element(tag=tag, attributes=attributes)
        self._open[-1].children.append(element)
        self._open.append(element)

    def end(self, tag: str) -> None:
        del tag
        self._open.pop()

    def add_text(self, text: str) -> None:
        element = self._open[-1]
        if len(element.text) < _MAX_TEXT_CHARS:
            element.text += text[:_MAX_TEXT_CHARS]


def read_junit(document: bytes) -> tuple[tuple[TestResult, ...], str]:
    """Return the tests of a report; the second value says why it cannot be read."""
    try:
        root = read_xml(document)
    except UnreadableXmlError as error:
        return (), f"the report is no JUnit XML: {error}"
    if root.tag not in {"testsuites", "testsuite"}:
        return (), f"the report is no JUnit XML: it begins with <{root.tag[:40]}>"
    return tuple(_result(case) for case in root.find_all("testcase")), ""


def _result(case: Element) -> TestResult:
    name = case.attributes.get("name", "")
    group = case.attributes.get("classname", "")
    status, account = _status(case)
    return a_test(
        f"{group}::{name}" if group not in {"", name} else name,
        status,
        message=account.attributes.get("message", "") if account else "",
        detail=_detail(case, account) if account else "",
    )


def _status(case: Element) -> tuple[TestStatus, Element | None]:
    for tag, status in (
        ("error", TestStatus.ERROR),
        ("failure", TestStatus.FAILED),
        ("rerunFailure", TestStatus.FAILED),
        ("skipped", TestStatus.SKIPPED),
    ):
        account = next((child for child in case.children if child.tag == tag), None)
        if account:
            return status, account
    # CTest and GoogleTest mark tests here that they did not run.
    if case.attributes.get("status", "run").lower() in {"notrun", "disabled"}:
        return TestStatus.SKIPPED, None
    if case.attributes.get("status", "").lower() == "fail":
        return TestStatus.FAILED, None
    return TestStatus.PASSED, None


def _detail(case: Element, account: Element) -> str:
    printed = (child.text for child in case.children if child.tag in {"system-out", "system-err"})
    parts = (account.text or account.attributes.get("message", ""), *printed)
    return "\n".join(part for part in parts if part.strip())


_REPORT_GLOBS: Final = ("build/test-results/*/*.xml", "target/surefire-reports/*.xml")
_ENV: Final = {
    "GRADLE_USER_HOME": "/tmp/gradle",
    "GRADLE_OPTS": "-Dorg.gradle.daemon=false",
}
_MAX_REPORT_BYTES: Final = 16 << 20


class JUnitRunner(Runner):
    """The build tools Gradle and Maven."""

    name = "junit"
    most = Grade.CHECKED
    configuration = (
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

    async def execute(self, run: CheckRun) -> Sequence[RawReport]:
        # Remove old reports, so that each report belongs to this run only.
        for path in await _reports(run.sandbox, run.cwd):
            await run.sandbox.remove_path(path)
        result = await run.start(run.call.path, *run.call.arguments, env=_ENV)
        tests: list[TestResult] = []
        problem = ""
        for path in await _reports(run.sandbox, run.cwd):
            try:
                document = await run.sandbox.read_file(path, max_bytes=_MAX_REPORT_BYTES)
            except WorkspaceError as error:
                problem = f"the report {path} cannot be read: {error}"
                continue
            found, wrong = read_junit(document)
            tests.extend(found)
            problem = problem or wrong
            await run.sandbox.remove_path(path)
        return [RawReport(result=result, tests=tuple(tests), problem=problem)]


async def _reports(sandbox: Sandbox, folder: PurePosixPath) -> tuple[PurePosixPath, ...]:
    return tuple(
        info.path
        for info in await sandbox.list_files()
        if info.kind == "file"
        and info.path.is_relative_to(folder)
        and any(info.path.match(pattern) for pattern in _REPORT_GLOBS)
    )


_REPORTS: Final = "/tmp/junit-reports"
_READ: Final = f"cat {_REPORTS}/*.xml"
_LAUNCHER: Final = re.compile(
    r"org\.junit\.platform\.console\.ConsoleLauncher|junit-platform-console-standalone[\w.-]*\.jar"
)
_PROGRAMS: Final = frozenset({"cd", "export", "mkdir", "javac", "java"})
_DOCUMENT: Final = re.compile(rb"(?=<\?xml )")
_TEST: Final = re.compile(r"@Test\b[^{;]*?\bvoid\s+(?P<name>\w+)\s*\(", re.DOTALL)
_CLASS: Final = re.compile(r"^(?:public\s+)?(?:final\s+)?class\s+(?P<name>\w+)", re.MULTILINE)
_PACKAGE: Final = re.compile(r"^package\s+(?P<name>[\w.]+)\s*;", re.MULTILINE)
_UNSURE: Final = re.compile(r"@Disabled|@Nested|@Enabled|@Tag|\babstract\s+class\b|/\*(?!\*)")
_ACTS: Final = (
    'throw new AssertionError("planted");',
    "org.junit.jupiter.api.Assertions.assertEquals(1, 2);",
    "org.junit.jupiter.api.Assertions.assertTrue(false);",
    'org.junit.jupiter.api.Assertions.fail("planted");',
)
_FLUENT: Final = "org.assertj.core.api.Assertions.assertThat(1).isEqualTo(2);"


class JUnitConsoleRunner(Runner):
    """JUnit 5 without a build tool."""

    name = "junit"
    configuration = (
        "**/junit-platform.properties",
        "**/META-INF/services/**",
        "**/*.gradle",
    )

    def understands(self, argv: tuple[str, ...]) -> bool:
        steps = read_chain(argv)
        return (
            bool(steps)
            and _PROGRAMS.issuperset(step[0] for step in steps)
            and steps[-1][0] == "java"
            and bool(_LAUNCHER.search(" ".join(steps[-1])))
        )

    def expected(self, check: CheckSpec, tree: Tree) -> frozenset[str]:
        texts = (tree.text(path) or "" for path in self.test_files(check))
        return frozenset(test for text in texts for test in _tests_in(text))

    def test_files(self, check: CheckSpec) -> tuple[PurePosixPath, ...]:
        return tuple(path for path in check.protected if path.suffix == ".java")

    def plan_canaries(self, check: CheckSpec, texts: Mapping[PurePosixPath, str]) -> Canaries:
        """Plan a class next to the tests that the command compiles by a glob."""
        canaries: dict[PurePosixPath, Planted] = {}
        beside = {path.parent: text for path, text in texts.items() if "@Test" in text}
        for folder, text in beside.items():
            if f"{folder}/*.java" not in check.argv[-1]:
                continue
            class_name = f"C{new_canary_name().replace('_', '')}Test"
            package = _PACKAGE.search(text)
            head = f"package {package['name']};\n" if package else ""
            canaries[folder / f"{class_name}.java"] = plant(
                f"{head}class {class_name} {{\n",
                "  @org.junit.jupiter.api.Test void {name}() {{ {act} }}\n",
                (*_ACTS, _FLUENT) if "org.assertj" in text else _ACTS,
                end="}\n",
            )
        return canaries

    async def execute(self, run: CheckRun) -> Sequence[RawReport]:
        await run.output_of("rm", "-rf", _REPORTS)
        result = await run.start("bash", "-c", f"{run.check.argv[-1]} --reports-dir={_REPORTS}")
        # The next run would find compiled canaries.
        classes = " -o ".join(f"-name '{path.stem}*.class'" for path in run.canaries)
        if classes:
            await run.output_of("sh", "-c", f"find {WORKSPACE} /tmp \\( {classes} \\) -delete")
        tests: list[TestResult] = []
        problem = ""
        for document in _DOCUMENT.split(await run.output_of("sh", "-c", _READ)):
            if document.strip().startswith(b"<?xml"):
                more, wrong = read_junit(document)
                tests.extend(more)
                problem = problem or wrong
        canaries = names_of(run.canaries)
        return [RawReport(result=result, tests=tuple(tests), canaries=canaries, problem=problem)]


def _tests_in(text: str) -> frozenset[str]:
    """Return the IDs of tests that a file certainly has; none for unusual layouts."""
    classes = _CLASS.findall(text)
    if len(classes) != 1 or _UNSURE.search(text):
        return frozenset()
    package = _PACKAGE.search(text)
    name = f"{package['name']}.{classes[0]}" if package else classes[0]
    return frozenset(f"{name}::{test}()" for test in _TEST.findall(text))
