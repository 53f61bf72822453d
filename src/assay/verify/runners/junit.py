"""Read reports in JUnit's XML, the format that most test runners can write."""

from assay.contracts.verdict import TestResult, TestStatus
from assay.verify.report_checks import a_test
from assay.verify.safe_xml import Element, UnreadableXmlError, read_xml


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
