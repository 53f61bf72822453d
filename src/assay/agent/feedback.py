"""Feedback for the model: changed results, failing tests, and each kind of failure once.

Failures are the same kind if their fingerprints are equal: the kind of error, its message, and
its origin.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from assay.contracts.verdict import CheckReport, TestResult, TestStatus
from assay.text.formatting import (
    cut_middle,
    normalise_addresses,
    normalise_temporary_paths,
    strip_control_codes,
    trim,
)

FAILING: Final = frozenset({TestStatus.FAILED, TestStatus.ERROR})
_MAX_CHARS: Final = 240
_KEPT: Final = 20
_KEPT_CHARS: Final = 3_000
_KIND: Final = re.compile(
    r"^(?:E\s+)?(?P<kind>(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning|Failure))"
    r"(?:\s\[\w+\])?(?::|$)",
    re.MULTILINE,
)
_ABOUT_NAMES: Final = frozenset(
    {
        "AttributeError", "ImportError", "KeyError", "ModuleNotFoundError", "NameError",
        "ReferenceError", "TypeError", "UnboundLocalError",
    }
)  # fmt: skip
_QUOTED: Final = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`")
_NUMBER: Final = re.compile(r"(?<![\w.])[-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?![A-Za-z_])")
_SPACE: Final = re.compile(r"\s+")
_FRAMES: Final = (
    re.compile(r"^\s*File \"(?P<file>[^\"\n]+)\", line \d+, in (?P<name>\S+)", re.MULTILINE),
    re.compile(r"^(?P<file>[^\s:\"'()]+\.py):\d+: ", re.MULTILINE),
    re.compile(
        r"^\s+at (?P<name>[^\n(]*?) ?\(?(?:file://)?(?P<file>/[^\n():]+):\d+:\d+\)?$", re.MULTILINE
    ),
    re.compile(r"panicked at (?:'[^\n]*', )?(?P<file>[^\s:']+\.rs):\d+"),
    re.compile(r"(?P<file>[^\s:()]+\.(?:go|cpp|cc|cxx|c|h|hpp|rs|js|ts|java)):\d+"),
)
_NOT_THEIRS: Final = re.compile(
    r"site-packages|node_modules|node:internal|<frozen|/lib/python3|/opt/assay|/rustc/|/usr/"
)
_INNERMOST_LAST: Final = 2
"""How many of the patterns above belong to Python, which prints the innermost frame last."""


def signature_of(test: TestResult) -> str:
    """Return the fingerprint of this failure, in one line."""
    text = strip_control_codes(f"{test.message}\n{test.detail}")
    kind = _kind_of(text)
    message = test.message or next((line for line in test.detail.splitlines() if line.strip()), "")
    said = normalise(
        strip_control_codes(message), keep_quoted=kind.rpartition(".")[2] in _ABOUT_NAMES
    )
    said = said.removeprefix(f"{kind}: ").removeprefix("E ")
    where = _where(text)
    whole = f"{kind or test.status}: {said}" + (f" (in {where})" if where else "")
    return whole[:_MAX_CHARS]


def signatures(reports: tuple[CheckReport, ...]) -> frozenset[str]:
    """Return the fingerprints of all failures; for a check without tests, of its ending."""
    found: set[str] = set()
    for report in reports:
        failing = _counted_failures(report)
        found.update(signature_of(test) for test in failing)
        if not report.passed and not failing:
            found.add(_signature_of_ending(report))
    return frozenset(found)


def first_failing(reports: Iterable[CheckReport]) -> tuple[TestResult, ...]:
    """Return the first failing tests, one of each kind of failure before the others of a kind."""
    failing = [test for report in reports for test in report.tests if test.status in FAILING]
    firsts = {signature_of(test): test for test in reversed(failing)}
    leading = [test for test in failing if any(test is each for each in firsts.values())]
    rest = [test for test in failing if not any(test is each for each in leading)]
    return tuple(
        replace(test, detail=cut_middle(test.detail, max_chars=_KEPT_CHARS))
        for test in (*leading, *rest)[:_KEPT]
    )


def normalise(text: str, *, keep_quoted: bool = False) -> str:
    """Return a message without the parts that differ between occurrences."""
    text = normalise_temporary_paths(normalise_addresses(text))
    if not keep_quoted:
        text = _QUOTED.sub("'…'", text)
    return _SPACE.sub(" ", _NUMBER.sub("N", text)).strip()


def _kind_of(text: str) -> str:
    match = _KIND.search(text)
    return match["kind"] if match else ""


def _where(text: str) -> str:
    for number, pattern in enumerate(_FRAMES):
        frames = [
            match for match in pattern.finditer(text) if not _NOT_THEIRS.search(match["file"])
        ]
        if not frames:
            continue
        frame = frames[-1] if number < _INNERMOST_LAST else frames[0]
        file = frame["file"].removeprefix("/app/")
        name = frame.groupdict().get("name")
        return f"{file}: {name}" if name else file
    return ""


def _signature_of_ending(report: CheckReport) -> str:
    text = strip_control_codes(report.output)
    kind = _kind_of(text)
    lines = [line for line in text.splitlines() if line.strip()]
    last = next(
        (line for line in reversed(lines) if kind and kind in line), lines[-1] if lines else ""
    )
    said = normalise(last, keep_quoted=kind.rpartition(".")[2] in _ABOUT_NAMES)
    return f"{report.runner}: {normalise(report.explanation)}: {said}"[:_MAX_CHARS]


__all__ = ["describe_reports", "first_failing", "signature_of", "signatures"]

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
    failing = _counted_failures(report)
    parts = [_headline(report, failing)]
    if report.known_failures:
        parts.append(
            "These failed before your change in the same way and do not count "
            f"({len(report.known_failures)}): {_some(list(report.known_failures))}"
        )
    if before is not None:
        counted = (test for test in report.tests if test.id not in report.known_failures)
        parts.extend(_comparison(tuple(counted), before))
    if failing:
        parts.extend(_failures(failing, max_chars=max_chars))
    elif not report.passed:
        printed = trim(report.output, max_chars=int(max_chars * _OUTPUT_SHARE))
        parts.append(f"It printed:\n{printed}" if printed else "It printed nothing.")
    return "\n".join(parts)


def _counted_failures(report: CheckReport) -> list[TestResult]:
    known = frozenset(report.known_failures)
    return [test for test in report.tests if test.status in FAILING and test.id not in known]


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
        passed = total - skipped - len(report.known_failures)
        counted = " that count" if report.known_failures else ""
        return f"{command}: all {passed} tests{counted} passed{aside}."
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
