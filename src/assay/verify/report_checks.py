"""Combine a runner's report and the end of its process into one observation.

A report is only a claim until it is consistent with the exit code, a test count above zero, and the
failures of the canaries.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from assay.contracts.execution import ExecutionResult, OutputChunk, Reason
from assay.contracts.ports import OnOutput
from assay.contracts.verdict import CheckReport, Finding, TamperKind, TestResult, TestStatus
from assay.text.formatting import trim
from assay.verify.spec import CheckSpec, Observation, forgery

Stream = Literal["stdout", "stderr"]

MAX_OUTPUT_CHARS: Final = 48_000
_MAX_REPORT_BYTES: Final = 64 << 20
_MAX_OUTPUTS: Final = 4
_MAX_TESTS: Final = 200_000
_MAX_ID_CHARS: Final = 500
_MAX_MESSAGE_CHARS: Final = 500
_MAX_DETAIL_CHARS: Final = 8_000
_WORST_LAST: Final = (
    TestStatus.SKIPPED,
    TestStatus.PASSED,
    TestStatus.FAILED,
    TestStatus.ERROR,
)
BAD: Final = frozenset({TestStatus.FAILED, TestStatus.ERROR})
"""Statuses of tests that did not pass although they ran."""
_COMMAND_NOT_FOUND: Final = 127

_ENDINGS: Final = {
    Reason.TIMED_OUT: "it did not end in time",
    Reason.CPU_TIME: "it used up its processor time",
    Reason.OUT_OF_MEMORY: "it used up its memory",
    Reason.TOO_MANY_PROCESSES: "it started too many processes",
    Reason.DISK_FULL: "it used up its disk space",
    Reason.OUTPUT_LIMIT: "it printed more than anyone could read",
    Reason.CANCELLED: "it was cancelled",
}

NONE_PASSED: Final = "no test passed"
HANGS: Final = frozenset({_ENDINGS[Reason.TIMED_OUT], _ENDINGS[Reason.CPU_TIME]})
"""Explanations of checks that hung."""
_NOT_THERE: Final = re.compile(r"^assay: (.+): No such file or directory$", re.MULTILINE)
_NOT_FOUND: Final = re.compile(r"(?:^|: )([^\s:]+): (?:command )?not found$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawReport:
    """The end of a test program and its report, before they are verified."""

    result: ExecutionResult
    tests: tuple[TestResult, ...] = ()
    canaries: frozenset[str] = frozenset()
    """Unpredictable names that are part of the canaries' IDs."""
    problem: str = ""
    """Why there is no report, or why it cannot be read."""
    findings: tuple[Finding, ...] = ()
    report_stream: Stream | None = None
    """The stream with the report, which is not shown to users."""
    output: str = ""
    """The text for users in place of the printed output."""


class ReportCapture:
    """Pass output on, and capture the complete stream that carries the report."""

    def __init__(self, stream: Stream, on_output: OnOutput) -> None:
        self._stream = stream
        self._on_output = on_output
        self._kept = bytearray()

    def __call__(self, chunk: OutputChunk) -> None:
        if chunk.stream != self._stream:
            self._on_output(chunk)
        elif len(self._kept) < _MAX_REPORT_BYTES:
            self._kept += chunk.data

    @property
    def content(self) -> bytes:
        return bytes(self._kept)

    @property
    def text(self) -> str:
        return self._kept.decode("utf-8", errors="replace")


def json_object(text: str) -> dict[str, Any]:
    """Return a JSON object, such as one line of a report; empty if the text is none."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def a_test(name: str, status: TestStatus, *, detail: str = "", message: str = "") -> TestResult:
    """Return a test result with short texts; its ID and message are single lines."""
    detail = detail[: 8 * _MAX_DETAIL_CHARS]
    if status in BAD and not message:
        message = next((line.strip() for line in detail.splitlines() if line.strip()), "")
    return TestResult(
        id=_one_line(name)[:_MAX_ID_CHARS],
        status=status,
        message=_one_line(trim(message, max_chars=_MAX_MESSAGE_CHARS)),
        detail=trim(detail, max_chars=_MAX_DETAIL_CHARS),
    )


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


def check_reports(
    check: CheckSpec, runner: str, reports: Sequence[RawReport], findings: Iterable[Finding] = ()
) -> Observation:
    """Check the reports of a check against the ends of their programs, and combine them.

    `findings` are about the canaries' files; like the findings of a report, they fail the check.
    """
    if len(reports) == 1:
        return _check_report(check, runner, reports[0], tuple(findings))
    parts = [_check_report(check, runner, report) for report in reports]
    found = (*findings, *(finding for part in parts for finding in part.findings))
    judged = [part.report for part in parts]
    tests = _worst_of_each(test for report in judged for test in report.tests)
    bad = [report for report in judged if not report.passed]
    explanation = bad[0].explanation if bad else "" if tests else "no test was carried out"
    if not explanation and found:
        explanation = found[0].explanation
    problems = [part.problem for part in parts]
    if explanation and not bad:
        problems.append(explanation)
    report = CheckReport(
        command=check.command,
        runner=runner,
        passed=not explanation,
        tests=tests,
        exit_code=(bad or judged)[0].exit_code if judged else None,
        explanation=explanation,
        output=trim(
            "\n".join(report.output for report in (bad or judged)[:_MAX_OUTPUTS]),
            max_chars=MAX_OUTPUT_CHARS,
        ),
        canaries_planted=sum(report.canaries_planted for report in judged),
        canaries_caught=sum(report.canaries_caught for report in judged),
        duration_s=sum(report.duration_s for report in judged),
    )
    # A part whose tests all failed before is no problem if another part has passed tests.
    real = [problem for problem in problems if problem and problem != NONE_PASSED]
    passed = any(test.passed for test in tests)
    problem = real[0] if real else "" if passed else NONE_PASSED
    return Observation(report=report, findings=found, problem=problem)


def _check_report(
    check: CheckSpec, runner: str, raw: RawReport, findings: tuple[Finding, ...] = ()
) -> Observation:
    """Check one report against the end of its program."""
    result = raw.result
    merged = _worst_of_each(raw.tests)
    planted = [test for test in merged if any(name in test.id for name in raw.canaries)]
    planted_ids = frozenset(test.id for test in planted)
    tests = tuple(test for test in merged if test.id not in planted_ids)
    caught = sum(_is_caught(name, planted) for name in raw.canaries)
    findings += (*raw.findings, *_findings(result, tests, planted, raw.canaries))
    otherwise = "tests that must fail did not" if caught < len(raw.canaries) else ""
    otherwise = otherwise or (findings[0].explanation if findings else "")
    explanation = _explanation(tests, raw) or otherwise
    report = CheckReport(
        command=check.command,
        runner=runner,
        passed=not explanation,
        tests=tests,
        exit_code=result.exit_code,
        explanation=explanation,
        output=trim(raw.output, max_chars=MAX_OUTPUT_CHARS)
        or printed_by(result, without=raw.report_stream),
        canaries_planted=len(raw.canaries),
        canaries_caught=caught,
        duration_s=result.duration_s,
    )
    return Observation(
        report=report, findings=findings, problem=_problem_apart(tests, raw) or otherwise
    )


def printed_by(result: ExecutionResult, *, without: Stream | None = None) -> str:
    """Return the trimmed output of both streams, or of one."""
    streams = {"stdout": result.stdout, "stderr": result.stderr}
    parts = (
        trim(text, max_chars=MAX_OUTPUT_CHARS // 2)
        for stream, text in streams.items()
        if stream != without
    )
    denied = f"kept from the network: {', '.join(map(str, result.denials))}"
    return "\n".join(part for part in (*parts, denied if result.denials else "") if part)


def explain_ending(result: ExecutionResult) -> str:
    """Return how a process failed; empty if it succeeded."""
    match result.reason:
        case Reason.COMPLETED if result.exit_code == 0:
            return ""
        case Reason.COMPLETED if result.exit_code == _COMMAND_NOT_FOUND:
            found = _NOT_FOUND.search(result.stderr)
            program = f"the program {found[1]!r}" if found else "a program it needs"
            return f"it ended with exit code 127: {program} is not in the sandbox"
        case Reason.COMPLETED:
            return f"it ended with exit code {result.exit_code}"
        case Reason.SIGNALLED:
            return f"it was ended by signal {result.signal}"
        case Reason.COULD_NOT_START:
            if found := _NOT_THERE.search(result.stderr):
                return f"the program {found[1]!r} is not in the sandbox"
            lines = [line.removeprefix("assay: ") for line in result.stderr.splitlines()]
            lines = [line for line in lines if line.strip()]
            why = lines[-1][:300] if lines else "no reason is known"
            return f"it could not be started: {why}"
        case reason:
            return _ENDINGS[reason]


def _worst_of_each(tests: Iterable[TestResult]) -> tuple[TestResult, ...]:
    """Return one result per ID: the worst of its reports counts."""
    kept: dict[str, TestResult] = {}
    for test in tests:
        known = kept.get(test.id)
        if known is None and len(kept) >= _MAX_TESTS:
            continue
        if known is None or _WORST_LAST.index(test.status) > _WORST_LAST.index(known.status):
            kept[test.id] = test
    return tuple(kept.values())


def _is_caught(name: str, planted: Iterable[TestResult]) -> bool:
    own = [test.status for test in planted if name in test.id]
    return bool(own) and all(status in BAD for status in own)


def _explanation(tests: tuple[TestResult, ...], raw: RawReport) -> str:
    """Return why the check did not pass; empty if it did."""
    ending = explain_ending(raw.result)
    if raw.result.reason is not Reason.COMPLETED:
        return ending
    bad = [test for test in tests if test.status in BAD]
    if bad:
        return f"{len(bad)} of {len(tests)} tests failed, the first is {bad[0].id}"
    if raw.problem:
        return raw.problem
    if not any(test.passed for test in tests):
        why = f": {ending}" if ending else ""
        return "all tests were skipped" if tests else f"no test was carried out{why}"
    if raw.result.exit_code and not raw.canaries:
        return f"every reported test passed, but {ending}"
    return ""


def _problem_apart(tests: tuple[TestResult, ...], raw: RawReport) -> str:
    """Return why the check would not pass if its failed tests did not count."""
    if raw.result.reason is not Reason.COMPLETED or not any(test.status in BAD for test in tests):
        return _explanation(tests, raw)
    return raw.problem or ("" if any(test.passed for test in tests) else NONE_PASSED)


def _findings(
    result: ExecutionResult,
    tests: tuple[TestResult, ...],
    planted: list[TestResult],
    canaries: frozenset[str],
) -> Iterator[Finding]:
    if result.reason is not Reason.COMPLETED:
        return
    passed = [test.id for test in planted if test.passed]
    if passed:
        said = f"{len(passed)} planted tests that must fail were reported as passed"
        yield forgery(TamperKind.PATCHED_RUNNER, said)
    if result.exit_code != 0:
        return
    if any(test.status in BAD for test in (*tests, *planted)):
        said = "the report has failed tests, but the exit code says that all is well"
        yield forgery(TamperKind.FORGED_REPORT, said)
    unreported = [name for name in canaries if not any(name in test.id for test in planted)]
    if unreported:
        said = (
            f"{len(unreported)} planted tests were not carried out, "
            "but the exit code says that all is well"
        )
        yield forgery(TamperKind.EARLY_EXIT, said)
