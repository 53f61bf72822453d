from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts.verdict import TestStatus
from assay.verify.runners.junit import UnreadableXmlError, read_junit, read_xml

SAMPLES = Path(__file__).parent / "samples"
BOMB = b"""<?xml version="1.0"?>
<!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>
<testsuite><testcase name="&c;"/></testsuite>"""
OUTSIDE = b"""<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]>
<testsuite><testcase name="&f;"/></testsuite>"""


def statuses(document: bytes) -> dict[str, TestStatus]:
    tests, problem = read_junit(document)
    assert not problem
    return {test.id: test.status for test in tests}


def test_googletest_is_read() -> None:
    assert statuses((SAMPLES / "gtest.xml").read_bytes()) == {
        "Adding::Adds": TestStatus.PASSED,
        "Adding::Fails": TestStatus.FAILED,
        "Adding::Skips": TestStatus.SKIPPED,
        "Adding::DISABLED_Later": TestStatus.SKIPPED,
    }


def test_ctest_is_read_and_its_output_kept() -> None:
    tests, _ = read_junit((SAMPLES / "ctest_junit.xml").read_bytes())

    assert [(test.id, test.status) for test in tests] == [("unit", TestStatus.FAILED)]
    assert "CHECK( add(1, 2) == 4 )" in tests[0].detail


def test_the_message_and_detail_of_a_failure_are_kept() -> None:
    tests, _ = read_junit((SAMPLES / "gtest.xml").read_bytes())
    failed = next(test for test in tests if test.status is TestStatus.FAILED)

    assert failed.message.startswith("g.cpp:3 Expected equality")
    assert "Which is: 3" in failed.detail


@pytest.mark.parametrize(
    "document",
    [
        BOMB,
        OUTSIDE,
        b"",
        b"not xml",
        b"<testsuite>",
        b"<html/>",
        b"<a>" * 100 + b"</a>" * 100,
        b"<testsuite/><testsuite/>",
    ],
)
def test_what_is_no_report_or_dangerous_is_refused(document: bytes) -> None:
    tests, problem = read_junit(document)

    assert not tests
    assert problem


def test_entities_that_are_declared_nowhere_are_not_followed() -> None:
    tests, problem = read_junit(b'<testsuite><testcase name="&c;"/></testsuite>')

    assert not tests
    assert "not well-formed" in problem


def test_bytes_that_are_no_text_do_not_hide_a_result() -> None:
    document = b'<?xml version="1.0" encoding="UTF-8"?><testsuite><testcase name="a">'
    document += b"<failure>\xff\xfe \x00\x1b[31m</failure></testcase></testsuite>"

    assert statuses(document) == {"a": TestStatus.FAILED}


def test_an_id_is_one_short_line() -> None:
    name = "a&#10;b" + "x" * 10_000
    tests, _ = read_junit(f'<testsuite><testcase name="{name}"/></testsuite>'.encode())

    assert tests[0].id.startswith("a bx")
    assert len(tests[0].id) <= 500


def test_a_hundred_thousand_tests_are_read() -> None:
    cases = "".join(f'<testcase name="t{number}"/>' for number in range(100_000))

    tests, problem = read_junit(f"<testsuite>{cases}</testsuite>".encode())

    assert len(tests) == 100_000
    assert not problem


@given(st.binary(max_size=200))
def test_any_bytes_are_either_read_or_refused(document: bytes) -> None:
    try:
        assert read_xml(document).tag
    except UnreadableXmlError as refusal:
        assert str(refusal)  # noqa: PT017 - both endings are right, a third one would not be
