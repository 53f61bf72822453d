"""C++ test frameworks: detection, canaries and reports."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from assay.contracts.verdict import TestResult, TestStatus
from assay.verify.canaries import new_canary_name
from assay.verify.report_checks import a_test
from assay.verify.runners.junit import read_junit
from assay.verify.safe_xml import Element, UnreadableXmlError, read_xml

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
