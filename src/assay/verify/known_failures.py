"""Judge by difference: tests that failed before the change and still fail in the same way.

Such a test does not reject an attempt, unless it counts as part of the goal. Each comparison uses
reports of runs in separate sandboxes, so code cannot change how a test failed before.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.verdict import CheckReport, Finding, TamperKind, TestResult, TestStatus
from assay.contracts.workspace import Tree
from assay.text.formatting import (
    count,
    normalise_addresses,
    normalise_temporary_paths,
    normalise_timings,
    strip_control_codes,
)
from assay.verify.discovery import find_tests
from assay.verify.missing_modules import is_named, is_third_party, missing_modules
from assay.verify.report_checks import BAD
from assay.verify.spec import Observation, VerificationSpec, doubt

_MAX_NAMES: Final = 10
_DETAIL_LINES: Final = 20
_SEGMENT_LINES: Final = 60
_FRAME: Final = re.compile(r"^\s*(?:at\s.*|File \".*|\d+:\s.*|stack backtrace:.*|note: .*)$")
_VARIABLE: Final = (
    # Line numbers of files, identifiers of threads and processes, dates, clock times, durations,
    # ports and UUIDs differ between two runs that fail in the same way.
    (re.compile(r"(\.\w{1,4}):\d+(?::\d+)?"), r"\1:N"),
    (re.compile(r"\b(line|pid|thread|PID)(['\" =:(]+)\d+"), r"\1\2N"),
    (re.compile(r"(thread '[^'\n]*') \(\d+\)"), r"\1"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::[\d.]+)?(?:Z|[+-]\d\d:?\d\d)?)?"), "T"),
    (re.compile(r"\b\d{1,2}:\d\d:\d\d(?:\.\d+)?\b"), "T"),
    (re.compile(r"\b\d+(?:\.\d+)?\s?(?:ns|µs|us|ms|s|sec|secs|seconds|minutes)\b"), "T"),
    (re.compile(r"((?:localhost|\d+\.\d+\.\d+\.\d+|\]):)\d+"), r"\1N"),
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"), "U"),
)  # fmt: skip
_REFUSED: Final = re.compile(
    r"kept from the network|Max retries exceeded|gaierror: \[Errno -\d+\]"
    r"|getaddrinfo (?:EAI_AGAIN|ENOTFOUND)|Temporary failure in name resolution"
    r"|\[Errno 101\] Network is unreachable|PermissionError: \[Errno 1\] Operation not permitted"
    r"|the program '[^']+' is not in the sandbox"
)
_UNDONE: Final = re.compile(
    r"NotImplementedError|cannot import name|\bnot (?:yet )?implemented\b|\bunimplemented!|todo!\(",
    re.IGNORECASE,
)
_WHOLE_SUITE: Final = re.compile(
    r"\btests?\b[^.\n]{0,40}\b(?:pass|passes|passing|green|succeed|succeeds)\b"
    r"|\b(?:pass|fix|satisfy|turn)\b[^.\n]{0,30}\btests\b"
    r"|\b(?:failing|broken|red|remaining) tests?\b|\btest suite\b",
    re.IGNORECASE,
)
_DEFINITION: Final = re.compile(
    r"\b(?:def|class|func|fn|function|struct|trait|interface|enum|const|let|var|type)"
    r"\s+(?:\([^)\n]*\)\s*)?([A-Za-z_]\w+)"
)
_TEST_START: Final = re.compile(
    r"^\s*(?:(?:async )?def test|func Test|#\[test\]|(?:test|it|describe)\(|TEST|@Test)"
)
_FAILED_IMPORT: Final = "unittest.loader._FailedTest."


@dataclass(frozen=True, slots=True)
class Comparison:
    """The failing tests of a report, compared with the report on the untouched files."""

    known: tuple[str, ...] = ()
    """Tests that failed before, still fail in the same way, and are not part of the goal."""
    differing: tuple[str, ...] = ()
    """Tests that failed before, and fail in another way now."""
    wanted: dict[str, str] = field(default_factory=dict[str, str])
    """Tests that fail as before, and why the goal needs them."""
    new: tuple[str, ...] = ()


def fails_alike(before: TestResult, now: TestResult, runner: str) -> bool:
    """Whether a test failed in the same way before: the same kind of error and message."""
    if before.status is not now.status:
        return False
    # Drivers leave out the details of a test after the first failures.
    in_full = bool(before.detail and now.detail)
    return _describe_failure(before, runner, in_full=in_full) == _describe_failure(
        now, runner, in_full=in_full
    )


def _describe_failure(test: TestResult, runner: str, *, in_full: bool) -> str:
    """Return how a test failed, without the parts that differ between two runs."""
    lines = [test.message]
    if in_full and runner == "pytest":
        lines += [line for line in test.detail.splitlines() if line.startswith("E ")]
    elif in_full and runner != "unittest":
        lines += [line for line in test.detail.splitlines() if not _FRAME.match(line)]
    lines = lines[:_DETAIL_LINES]
    text = strip_control_codes("\n".join(lines))
    text = normalise_timings(normalise_temporary_paths(normalise_addresses(text)))
    for pattern, replacement in _VARIABLE:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def compare_reports(
    case: VerificationSpec,
    report: CheckReport,
    before: CheckReport,
    changed: Sequence[PurePosixPath],
) -> Comparison:
    """Sort the failing tests of a report by what they did on the untouched files."""
    earlier = {test.id: test for test in before.tests if test.status in BAD}
    subject = _subject_of(case, changed)
    known: list[str] = []
    differing: list[str] = []
    new: list[str] = []
    wanted: dict[str, str] = {}
    for test in report.tests:
        if test.status not in BAD:
            continue
        was = earlier.get(test.id)
        if was is None:
            new.append(test.id)
        elif not fails_alike(was, test, report.runner):
            differing.append(test.id)
        elif why := _why_wanted(case, test, subject):
            wanted[test.id] = why
        else:
            known.append(test.id)
    return Comparison(tuple(known), tuple(differing), wanted, tuple(new))


def _why_wanted(case: VerificationSpec, test: TestResult, subject: "_Subject") -> str:
    """Return why a test that failed before must pass; empty if nothing shows that it must."""
    why = ""
    text = f"{test.message}\n{test.detail}"
    if case.known_failures is not None:
        why = "" if test.id in case.known_failures else "it passed before"
    elif any(_is_selected(case.pristine, word, test.id) for word in case.required):
        why = "--tests or a check names it"
    elif any(is_named(name, case.goal) for name in _names_of(test.id)):
        why = "the goal names it"
    elif is_environmental(test, case.pristine, case.goal):
        why = ""
    elif _UNDONE.search(text) or any(
        not is_third_party(name, case.pristine) for name in missing_modules(text)
    ):
        why = "it needs code that is not written yet"
    elif _WHOLE_SUITE.search(case.goal):
        why = "the goal asks for passing tests"
    elif subject.is_tested_by(test, case.pristine):
        why = "it tests what the goal names or the change modifies"
    return why


def is_environmental(test: TestResult, tree: Tree, goal: str) -> bool:
    """Whether a test fails because the sandbox lacks a package, a program or a network."""
    text = f"{test.message}\n{test.detail}"
    if _REFUSED.search(text):
        return True
    names = list(missing_modules(text))
    return bool(names) and all(
        is_third_party(name, tree) and not is_named(name, goal) for name in names
    )


def _is_selected(tree: Tree, word: str, test: str) -> bool:
    """Whether a file or test ID of the user selects a test."""
    if "::" in word:
        return test == word or test.startswith((f"{word}::", f"{word}["))
    path, plain = PurePosixPath(word), test.removeprefix(_FAILED_IMPORT)
    if path.suffix == ".py":
        dotted = ".".join(path.with_suffix("").parts)
        return plain.partition("::")[0] == word or f"{plain}.".startswith(f"{dotted}.")
    # Other runners name a test without its file.
    return plain.startswith(word) or is_named(_bare_name(plain), tree.text(path) or "")


def _names_of(test: str) -> Iterator[str]:
    """Yield the names by which a goal can mean a test: its ID, file, class and function."""
    bare = test.removeprefix(_FAILED_IMPORT).partition("[")[0]
    file, _, rest = bare.partition("::")
    yield bare
    if PurePosixPath(file).suffix:
        yield from (file, PurePosixPath(file).name, PurePosixPath(file).stem)
    words = re.split(r"::|\.| > |/", rest or bare)
    yield from (word for word in words[-2:] if re.search(r"test|_|[a-z][A-Z]| ", word))


@dataclass(frozen=True, slots=True)
class _Subject:
    """What the goal is about, as far as names tell."""

    names: frozenset[str]
    """Functions and classes that the goal names."""
    modules: frozenset[str]
    """Modules that the goal names or the change modifies."""

    def is_tested_by(self, test: TestResult, tree: Tree) -> bool:
        text = _file_of(tree, test)
        if text is None:
            return True
        if self.names:
            part = _segment_of(text, test)
            return any(is_named(name, part) for name in self.names)
        return any(is_named(name, text) for name in self.modules)


def _subject_of(case: VerificationSpec, changed: Sequence[PurePosixPath]) -> _Subject:
    tests = set(find_tests(case.pristine))
    words = set(re.findall(r"[\w./-]*\w", case.goal))
    named = [p for p in case.pristine.files if str(p) in words or p.name in words]
    sources = [path for path in dict.fromkeys((*named, *changed)) if path not in tests]
    defined = {
        name for path in sources for name in _DEFINITION.findall(case.pristine.text(path) or "")
    }
    inside = set(re.findall(r"\w+", case.goal))
    return _Subject(
        names=frozenset(defined & inside),
        modules=frozenset(name for path in sources for name in _stems(path)),
    )


def _stems(path: PurePosixPath) -> Iterator[str]:
    if path.stem in {"__init__", "__main__", "index", "mod", "lib", "main"} and path.parent.name:
        yield path.parent.name
    else:
        yield path.stem


def _file_of(tree: Tree, test: TestResult) -> str | None:
    """Return the text of the file with a test; None if it is not found."""
    plain = test.id.removeprefix(_FAILED_IMPORT)
    direct = tree.text(PurePosixPath(plain.partition("::")[0].partition(" > ")[0]))
    if direct is not None:
        return direct
    module = tree.text(PurePosixPath(*plain.split(".")).with_suffix(".py"))
    if module is not None:
        return module
    name = _bare_name(plain)
    found = [tree.text(path) or "" for path in find_tests(tree)]
    texts = [text for text in found if name and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]
    return "\n".join(texts) or None


def _bare_name(test: str) -> str:
    return re.split(r"::|\.| > |/", test.partition("[")[0])[-1]


def _segment_of(text: str, test: TestResult) -> str:
    """Return the source of one test, or the whole file if the test is not found in it."""
    name = _bare_name(test.id)
    lines = text.splitlines()
    starts = (number for number, line in enumerate(lines) if name and is_named(name, line))
    start = next(starts, None)
    if start is None:
        return text
    end = start + 1
    while end < min(len(lines), start + _SEGMENT_LINES) and not _TEST_START.match(lines[end]):
        end += 1
    return "\n".join(lines[start:end])


def has_failed_tests(observation: Observation) -> bool:
    """Whether a check failed only because of tests, so that known failures can matter."""
    failed = any(test.status in BAD for test in observation.report.tests)
    return not observation.report.passed and failed and observation.problem == ""


def judge_by_difference(
    case: VerificationSpec,
    observation: Observation,
    before: CheckReport,
    changed: Sequence[PurePosixPath],
) -> Observation:
    """Return the observation of a failed check without the failures that were known before.

    An exit code alone cannot be judged in this way.
    """
    report = observation.report
    if not has_failed_tests(observation):
        return observation
    found = compare_reports(case, report, before, changed)
    if found.new or found.differing or found.wanted:
        explanation = f"{report.explanation}{_explain(found)}"
        kept = replace(report, known_failures=found.known, explanation=explanation)
        return replace(observation, report=kept)
    kept = replace(report, passed=True, explanation="", known_failures=found.known)
    finding = doubt(
        TamperKind.KNOWN_FAILURE,
        f"{count(len(found.known), 'test')} failed on the untouched files as well, and still "
        f"{'fails' if len(found.known) == 1 else 'fail'} in the same way: {_some(found.known)}",
    )
    return replace(observation, report=kept, findings=(*observation.findings, finding))


def _explain(found: Comparison) -> str:
    parts: list[str] = []
    if found.differing:
        parts.append(f"in another way than before: {_some(found.differing)}")
    if found.known:
        parts.append(f"failed before as well and not counted: {_some(found.known)}")
    return "".join(f"; {part}" for part in parts)


def lost_tests(report: CheckReport, before: CheckReport) -> tuple[Finding, ...]:
    """Reject tests that passed before the change, and are missing or skipped now."""
    if not report.known_failures:
        return ()
    now: dict[str, TestStatus] = {}
    for test in report.tests:
        name = test.id.partition("[")[0]
        if now.get(name) is not TestStatus.PASSED:
            now[name] = test.status
    passed = dict.fromkeys(test.id.partition("[")[0] for test in before.tests if test.passed)
    missing = [name for name in passed if name not in now]
    skipped = [name for name in passed if now.get(name) is TestStatus.SKIPPED]
    return tuple(
        Finding(
            kind=kind,
            severity="rejected",
            explanation=f"passed on the untouched files and {what} now: {_some(names)}",
        )
        for kind, what, names in (
            (TamperKind.TESTS_MISSING, "missing", missing),
            (TamperKind.TESTS_SKIPPED, "skipped", skipped),
        )
        if names
    )


def without_witness(
    reports: Sequence[CheckReport], before: Sequence[CheckReport]
) -> tuple[Finding, ...]:
    """Reject known failures if no test or check changed from failing to passing."""
    if not any(report.known_failures for report in reports):
        return ()
    for now, earlier in zip(reports, before, strict=False):
        if not now.tests and now.passed and not earlier.passed:
            return ()
        failed = [
            test.id.removeprefix(_FAILED_IMPORT) for test in earlier.tests if test.status in BAD
        ]
        if any(test.passed and _is_within(test.id, failed) for test in now.tests):
            return ()
    said = "no test changed from failing to passing, and the tests that failed before still fail"
    return (Finding(kind=TamperKind.PASSED_BEFORE, severity="rejected", explanation=said),)


def _is_within(test: str, failed: Iterable[str]) -> bool:
    """Whether a test failed before, or belongs to a file or class that failed as a whole."""
    return any(
        test == one or test.startswith((f"{one}::", f"{one}.", f"{one}[", f"{one} > "))
        for one in failed
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
