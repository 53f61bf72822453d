"""Runners whose report is JUnit's XML, and the reader of that format.

Gradle and Maven write it themselves. For JUnit's console launcher, Assay compiles the tests and
adds canaries. Runners of other languages use `read_junit` too. The XML comes from untrusted
programs: no document types, no entities, limited size. The standard library's tree parsers
expand entities, so a few bytes can become gigabytes.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final
from xml.parsers import expat

from assay.contracts.errors import WorkspaceError
from assay.contracts.execution import WORKSPACE, Command
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import Grade, TestResult, TestStatus
from assay.contracts.workspace import Tree
from assay.verify.canaries import Plan, new_canary_name, planted, read_texts
from assay.verify.parse_command import read_invocation
from assay.verify.report_checks import RawReport, a_test, conclude, with_doubt
from assay.verify.spec import CheckSpec, Observation

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
        and any(info.path.match(pattern) for pattern in _REPORT_GLOBS)
    )


_REPORTS: Final = "/tmp/junit-reports"
_READ: Final = f"cat {_REPORTS}/*.xml"
_LAUNCHER: Final = re.compile(
    r"org\.junit\.platform\.console\.ConsoleLauncher|junit-platform-console-standalone[\w.-]*\.jar"
)
_PROGRAMS: Final = frozenset({"cd", "export", "mkdir", "javac", "java"})
_MORE_THAN_A_CHAIN: Final = re.compile(r"[|;<>$`()]|(?<!&)&(?!&)|&&&")
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


class JUnitConsoleRunner:
    """JUnit 5 without a build tool."""

    name = "junit"
    most = Grade.PROVEN
    configuration: tuple[str, ...] = (
        "**/junit-platform.properties",
        "**/META-INF/services/**",
        "**/*.gradle",
    )

    def understands(self, argv: tuple[str, ...]) -> bool:
        return argv[:2] == ("bash", "-c") and _is_chain(argv[-1])

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        found: set[str] = set()
        for path in _test_files(order):
            found.update(_tests_in(tree.text(path) or ""))
        return frozenset(found)

    async def run(
        self, order: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        plan = Plan()
        if order.canaries:
            plan = _plan(order, await read_texts(sandbox, _test_files(order)))
        await sandbox.run(Command(argv=("rm", "-rf", _REPORTS)))
        async with planted(sandbox, plan) as findings:
            result = await sandbox.run(
                Command(
                    argv=("bash", "-c", f"{order.argv[-1]} --reports-dir={_REPORTS}"),
                    timeout_s=order.timeout_s,
                ),
                on_output=on_output,
            )
        # The next run would find compiled canaries.
        classes = " -o ".join(f"-name '{path.stem}*.class'" for path in plan.files)
        if classes:
            remove = f"find {WORKSPACE} /tmp \\( {classes} \\) -delete"
            await sandbox.run(Command(argv=("sh", "-c", remove)))
        kept = bytearray()
        await sandbox.run(
            Command(argv=("sh", "-c", _READ)), on_output=lambda chunk: kept.extend(chunk.data)
        )
        tests: list[TestResult] = []
        problem = ""
        for document in _DOCUMENT.split(bytes(kept)):
            if document.strip().startswith(b"<?xml"):
                more, wrong = read_junit(document)
                tests.extend(more)
                problem = problem or wrong
        account = RawReport(
            tests=tuple(tests), canaries=plan.names, problem=problem, findings=tuple(findings)
        )
        return with_doubt(order, conclude(order, self.name, result, account))


def _is_chain(command: str) -> bool:
    if _MORE_THAN_A_CHAIN.search(command):
        return False
    try:
        steps = [shlex.split(step) for step in command.split("&&")]
    except ValueError:
        return False
    programs = [step[0] for step in steps if step]
    return (
        len(programs) == len(steps)
        and _PROGRAMS.issuperset(programs)
        and programs[-1] == "java"
        and bool(_LAUNCHER.search(" ".join(steps[-1])))
    )


def _test_files(order: CheckSpec) -> tuple[PurePosixPath, ...]:
    return tuple(path for path in order.protected if path.suffix == ".java")


def _tests_in(text: str) -> frozenset[str]:
    """Return the IDs of tests that a file certainly has; none for unusual layouts."""
    classes = _CLASS.findall(text)
    if len(classes) != 1 or _UNSURE.search(text):
        return frozenset()
    package = _PACKAGE.search(text)
    name = f"{package['name']}.{classes[0]}" if package else classes[0]
    return frozenset(f"{name}::{test}()" for test in _TEST.findall(text))


def _plan(order: CheckSpec, texts: dict[PurePosixPath, str]) -> Plan:
    """Plan a class of canaries next to the tests that the command compiles by a glob."""
    files: dict[PurePosixPath, bytes] = {}
    names: set[str] = set()
    beside = {path.parent: text for path, text in texts.items() if "@Test" in text}
    for folder, text in beside.items():
        if f"{folder}/*.java" not in order.argv[-1]:
            continue
        acts = (*_ACTS, _FLUENT) if "org.assertj" in text else _ACTS
        own = {new_canary_name(): act for act in acts}
        class_name = f"C{new_canary_name().replace('_', '')}Test"
        tests = "\n".join(
            f"  @org.junit.jupiter.api.Test void {name}() {{ {act} }}" for name, act in own.items()
        )
        package = _PACKAGE.search(text)
        head = f"package {package['name']};\n" if package else ""
        source = f"{head}class {class_name} {{\n{tests}\n}}\n"
        files[folder / f"{class_name}.java"] = source.encode()
        names.update(own)
    return Plan(files=files, names=frozenset(names))
