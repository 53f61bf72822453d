"""Feedback for the model: changed results, failing tests, and each kind of failure once."""

from collections.abc import Iterable, Mapping
from typing import Final

from assay.agent.failure_fingerprint import FAILING, signature_of, signatures
from assay.contracts.verdict import CheckReport, TestResult, TestStatus
from assay.text.truncate import cut_middle, trim

__all__ = ["describe_reports", "signature_of", "signatures"]

_FULL: Final = 3
"""Failures with full details; more of them distract from the first."""
_NAMES: Final = 20
_LINES: Final = 40
_DETAIL_SHARE: Final = 0.22
_OUTPUT_SHARE: Final = 0.6
_MAX_NAME_CHARS: Final = 200


def describe_reports(
    reports: tuple[CheckReport, ...],
    *,
    before: Mapping[str, TestStatus] | None,
    max_chars: int = 24_000,
) -> str:
    """Describe the check results, compared with earlier results of the tests."""
    share = max_chars // max(len(reports), 1)
    parts = [_describe(report, before=before, max_chars=share) for report in reports]
    return cut_middle("\n\n".join(parts), max_chars=max_chars)


def _describe(
    report: CheckReport, *, before: Mapping[str, TestStatus] | None, max_chars: int
) -> str:
    failing = [test for test in report.tests if test.status in FAILING]
    parts = [_headline(report, failing)]
    if before is not None:
        parts.extend(_comparison(report.tests, before))
    if failing:
        parts.extend(_failures(failing, max_chars=max_chars))
    elif not report.passed:
        printed = trim(report.output, max_chars=int(max_chars * _OUTPUT_SHARE))
        parts.append(f"It printed:\n{printed}" if printed else "It printed nothing.")
    return "\n".join(parts)


def _headline(report: CheckReport, failing: list[TestResult]) -> str:
    command = f"`{_line(report.command)}`"
    total = len(report.tests)
    skipped = sum(test.status is TestStatus.SKIPPED for test in report.tests)
    aside = f", {skipped} skipped" if skipped else ""
    if failing:
        return f"{command}: {len(failing)} of {total} tests failed{aside}."
    if not report.passed:
        counted = f" {total - skipped} tests passed{aside}." if total else ""
        return f"{command} did not pass: {_line(report.explanation)}.{counted}"
    if total:
        return f"{command}: all {total - skipped} tests passed{aside}."
    return f"{command} passed."


def _comparison(tests: tuple[TestResult, ...], before: Mapping[str, TestStatus]) -> Iterable[str]:
    was_bad = {name for name, status in before.items() if status in FAILING}
    was_good = {name for name, status in before.items() if status is TestStatus.PASSED}
    failing = [test.id for test in tests if test.status in FAILING]
    groups = {
        "Newly broken, these passed before": [name for name in failing if name in was_good],
        "Newly fixed": [test.id for test in tests if test.passed and test.id in was_bad],
        "Still failing": [name for name in failing if name in was_bad],
    }
    return (f"{title} ({len(names)}): {_some(names)}" for title, names in groups.items() if names)


def _failures(failing: list[TestResult], *, max_chars: int) -> Iterable[str]:
    """Yield the first failure of each kind in full, as space permits, and a line for each other."""
    kinds: dict[str, list[TestResult]] = {}
    # A group that failed because of a test in it adds no information.
    for test in sorted(failing, key=lambda test: not test.detail):
        kinds.setdefault(signature_of(test), []).append(test)
    groups = list(kinds.values())
    for group in groups[:_FULL]:
        first, others = group[0], group[1:]
        told = trim(first.detail or first.message, max_chars=int(max_chars * _DETAIL_SHARE))
        yield f"\n--- {_line(first.id)} ({first.status})\n{told or 'no account was given'}"
        if others:
            yield f"The same in {len(others)} more: {_some([test.id for test in others])}"
    rest = [group[0] for group in groups[_FULL:]]
    if rest:
        yield f"\nOther failures ({len(rest)} kinds):"
    for test in rest[:_LINES]:
        yield f"- {_line(test.id)}: {_line(test.message) or test.status}"
    if len(rest) > _LINES:
        yield f"- and {len(rest) - _LINES} more kinds"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(_line(name) for name in names[:_NAMES]) + more


def _line(text: str) -> str:
    """Return a text on one line, so that it cannot look like several."""
    return " ".join(text.split())[:_MAX_NAME_CHARS]
