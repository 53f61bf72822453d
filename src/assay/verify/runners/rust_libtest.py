"""Read the output of cargo and of Rust test programs."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.execution import WORKSPACE
from assay.contracts.verdict import TestResult, TestStatus
from assay.verify.report_checks import a_test

_TOP_LEVEL_TEST: Final = re.compile(
    r"(?<!\]\n)^#\[test\]\n(?:#\[(?:ignore|should_panic)[^\n]*\]\n)*fn (?P<name>\w+)\(",
    re.MULTILINE,
)
_BLOCK_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
_RAW_STRING: Final = re.compile(r'\br(#+)".*?"\1', re.DOTALL)
_DOC_TEST: Final = re.compile(
    r"^test (?P<name>\S+ - .*?\(line \d+\).*?) \.\.\. (?P<status>ok|FAILED|ignored)$", re.MULTILINE
)
_STATUSES: Final = {
    "ok": TestStatus.PASSED,
    "failed": TestStatus.FAILED,
    "timeout": TestStatus.FAILED,
    "ignored": TestStatus.SKIPPED,
}
_PANIC: Final = re.compile(r"^thread .* panicked at (?P<where>[^\n]*?):?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestProgram:
    """One executable that cargo built from tests."""

    __test__ = False

    executable: str
    source: PurePosixPath
    """The path from the workspace root, which prefixes the test IDs."""
    folder: PurePosixPath
    """The package folder, from the workspace root."""
    separate: bool
    """Whether it was built from a test file and not from tests within the code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The programs that cargo built, or the reason for its failure."""

    programs: tuple[TestProgram, ...]
    has_documentation: bool
    """Whether there is a library whose documentation examples can be tested."""
    errors: tuple[str, ...]


def named_tests(text: str) -> tuple[str, ...]:
    """Return the names of the tests outside of modules and macros."""
    text = _RAW_STRING.sub('""', _BLOCK_COMMENT.sub("", text))
    return tuple(match["name"] for match in _TOP_LEVEL_TEST.finditer(text))


def _records(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        try:
            record: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield cast("dict[str, Any]", record)


def read_build(text: str) -> Build:
    """Read the messages of `cargo test --no-run --message-format=json`."""
    programs: list[TestProgram] = []
    errors: list[str] = []
    has_documentation = False
    for record in _records(text):
        match record:
            case {
                "reason": "compiler-message",
                "message": {"level": "error", "rendered": rendered},
            }:
                errors.append(str(rendered))
            case {
                "reason": "compiler-artifact",
                "executable": str(executable),
                "profile": {"test": True},
                "manifest_path": str(manifest),
                "target": {"src_path": str(source), "kind": [*kinds]},
            }:
                programs.append(
                    TestProgram(
                        executable=executable,
                        source=_inside(source),
                        folder=_inside(manifest).parent,
                        separate="test" in kinds,
                    )
                )
            case {"reason": "compiler-artifact", "target": {"doctest": True}}:
                has_documentation = True
            case _:
                pass
    # Programs of the user's test files run first, before other code could tamper with them.
    programs.sort(key=lambda program: not program.separate)
    return Build(
        programs=tuple(programs), has_documentation=has_documentation, errors=tuple(errors)
    )


def _inside(path: str) -> PurePosixPath:
    whole = PurePosixPath(path)
    return whole.relative_to(WORKSPACE) if whole.is_relative_to(WORKSPACE) else whole


def read_suite(text: str, source: PurePosixPath) -> tuple[tuple[TestResult, ...], str]:
    """Read the JSON report of one test program; the second value describes its errors."""
    tests: list[TestResult] = []
    announced = 0
    totals: dict[str, Any] | None = None
    for record in _records(text):
        match record:
            case {"type": "suite", "event": "started", "test_count": int(count)}:
                announced += count
            case {"type": "suite", "event": "ok" | "failed"}:
                totals = record
            case {"type": "test", "event": str(event), "name": str(name)} if event in _STATUSES:
                tests.append(_result(f"{source}::{name}", event, record))
            case _:
                pass
    if totals is None:
        return tuple(tests), f"the tests of {source} ended before they reported"
    counted = sum(_count(totals, name) for name in ("passed", "failed", "ignored"))
    if counted != len(tests) or announced != len(tests):
        return tuple(tests), f"the report on {source} does not fit its own totals"
    return tuple(tests), ""


def _count(totals: dict[str, Any], name: str) -> int:
    value = totals.get(name)
    return value if isinstance(value, int) else 0


def _result(name: str, event: str, record: dict[str, Any]) -> TestResult:
    status = _STATUSES[event]
    printed = str(record.get("stdout", "")) if status is TestStatus.FAILED else ""
    message = str(record.get("message", ""))
    panic = _PANIC.search(printed)
    if panic:
        rest = printed[panic.end() :].partition("\nnote: ")[0].partition("\nstack backtrace:")[0]
        message = f"{' '.join(rest.split())} ({panic['where']})"
    return a_test(name, status, message=message, detail=printed)


def read_doc_tests(text: str) -> tuple[TestResult, ...]:
    """Read the output lines of `cargo test --doc`."""
    return tuple(
        a_test(match["name"], _STATUSES[match["status"].lower()])
        for match in _DOC_TEST.finditer(text)
    )
