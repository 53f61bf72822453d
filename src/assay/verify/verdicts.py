"""Pure functions from observations to findings and a verdict.

Among them is the decision whether the checks exercise the change: whether it ran, and whether it
mattered.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final

from assay.contracts.verdict import (
    CheckReport,
    Finding,
    Grade,
    TamperKind,
    TestResult,
    TestStatus,
    Verdict,
)
from assay.contracts.workspace import Tree, TreeFile, changes_between
from assay.text.formatting import all_of, count
from assay.verify.discovery import find_tests, is_test_file
from assay.verify.inverted_tests import RewrittenTests
from assay.verify.judged_tree import is_protected
from assay.verify.report_checks import BAD
from assay.verify.runner import Runner
from assay.verify.runners.python import PythonRun
from assay.verify.spec import CheckSpec, Observation, VerificationSpec, doubt, forgery

_SHOWN: Final = 3
# The markers with which tests of several languages request a skip.
_SKIP_MARKER: Final = re.compile(
    r"skip|xfail|expectedfailure|[@\[]ignore|,\s*ignore\b|disabled"
    r"|\.todo\b|[{,]\s*todo\s*:|\bx(?:it|test|describe)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check and its runner."""

    runner: Runner
    spec: CheckSpec

    def but(self, **changes: Any) -> "Check":
        """Return the check with other fields of its specification."""
        return replace(self, spec=replace(self.spec, **changes))


def missing_tests(check: Check, tree: Tree, report: CheckReport) -> tuple[Finding, ...]:
    """Report tests that are in the files and not in the report."""
    failed = {test.id for test in report.tests if test.status in BAD}
    if not failed.issubset(report.known_failures):
        # The report has an error, such as a failed import or fixture, so it does not claim success.
        return ()
    reported = {_bare(test.id) for test in report.tests}
    skipped = {test.id for test in report.tests if test.status is TestStatus.SKIPPED}
    # The tests of a file that could not be imported before either are not known.
    skipped |= {name.removeprefix("unittest.loader._FailedTest.") for name in failed}
    missing = sorted(
        name
        for name in check.runner.expected(check.spec, tree) - reported
        if not any(name.startswith((f"{whole}::", f"{whole}.")) for whole in skipped)
    )
    if not missing:
        return ()
    return (forgery(TamperKind.TESTS_MISSING, f"not in the report: {_some(missing)}"),)


def skipped_tests(case: VerificationSpec, tree: Tree, report: CheckReport) -> tuple[Finding, ...]:
    """Distinguish the user's skips from skips that the attempt caused."""
    skipped = [test for test in report.tests if test.status is TestStatus.SKIPPED]
    if not skipped:
        return ()
    caused = [test.id for test in skipped if not _is_requested(case, tree, test)]
    if caused:
        said = f"skipped, though the tests do not ask for it: {_some(caused)}"
        return (forgery(TamperKind.TESTS_SKIPPED, said),)
    said = f"not run, as the tests say themselves: {_some([test.id for test in skipped])}"
    return (doubt(TamperKind.TESTS_SKIPPED, said),)


def _is_requested(case: VerificationSpec, tree: Tree, test: TestResult) -> bool:
    """Whether the file that caused the skip is the user's, and requests it."""
    origin = test.message.partition(":")[0]
    path = PurePosixPath(origin if origin.endswith(".py") else test.id.partition("::")[0])
    before = case.pristine.text(path)
    if before is not None:
        if not _SKIP_MARKER.search(before) or is_protected(case, path):
            return bool(_SKIP_MARKER.search(before))
        # An unprotected file may have no more skips than before; Python must be unchanged.
        now = tree.text(path) or ""
        if path.suffix == ".py":
            return now == before
        return len(_SKIP_MARKER.findall(now)) <= len(_SKIP_MARKER.findall(before))
    if origin.endswith(".py"):
        # The skip comes from a file that the user did not write.
        return False
    return any(
        _SKIP_MARKER.search(case.pristine.text(path) or "")
        for path in case.pristine.files
        if is_protected(case, path)
    )


def compare_repetition(
    first: CheckReport, again: PythonRun, *, reverse: bool
) -> tuple[Finding, ...]:
    """Compare a run with one under other conditions."""
    before = {test.id: test.status for test in first.tests}
    after = {test.id: test.status for test in again.observation.report.tests}
    differing = sorted(name for name in before if before[name] != after.get(name))
    if not differing and again.complete:
        return ()
    order = ", in another order" if reverse else ""
    said = f"ended differently when run again{order}: {_some(differing) or 'the whole run'}"
    return (doubt(TamperKind.UNSTABLE, said),)


def check_inverted_tests(
    first: CheckReport, same: PythonRun, turned: PythonRun, tests: RewrittenTests
) -> tuple[Finding, ...]:
    """Evaluate inverted tests that passed, which correct code cannot achieve."""
    if not turned.complete:
        said = "tests that must fail could not be run to their end"
        return (doubt(TamperKind.UNSTABLE, said),)
    # A test that reaches none of its assertions passes in both versions. A test that fails in the
    # version that keeps its meaning depends on its own text, for example on a traceback.
    steady = {test.id for test in same.observation.report.tests if test.passed}
    reaching = [test.id for test in first.tests if test.passed and same.reached.get(test.id)]
    probed = [name for name in reaching if name in steady]
    # IDs are counted without parameters, because those are part of the inversion.
    names = Counter(_bare(test.id) for test in first.tests if test.passed)
    vacuous = names - Counter(map(_bare, reaching))
    after = Counter(_bare(t.id) for t in turned.observation.report.tests if t.passed)
    forged = after - (names - Counter(map(_bare, probed)))
    passed = [name for name in probed if _bare(name) in forged]
    if passed:
        return (_passed_inverted(passed, same, tests),)
    # Tests with assertions that they cannot avoid.
    missed = [name for name in vacuous if tests.within.get(re.split(r"::|\.", name)[-1])]
    if missed:
        said = f"passed without coming to any of its assertions: {_some(missed)}"
        return (doubt(TamperKind.TESTS_SKIPPED, said),)
    if not reaching:
        said = "no test has an assertion that could be turned, so forging them would not be seen"
        return (doubt(TamperKind.PATCHED_RUNNER, said),)
    return ()


def _passed_inverted(passed: list[str], same: PythonRun, tests: RewrittenTests) -> Finding:
    if all(same.reached[name] <= tests.unsure for name in passed):
        said = f"passed although something else was asked: {_some(passed)}"
        return doubt(TamperKind.READS_TESTS, said)
    followed = [name for name in passed if same.reached[name] & tests.constants]
    if followed:
        said = (
            f"passed although what they expect was changed: {_some(followed)}; the answers "
            "come from the tests, or claim to be equal to everything"
        )
        return forgery(TamperKind.READS_TESTS, said)
    said = f"passed although they claim the opposite: {_some(passed)}"
    return forgery(TamperKind.PATCHED_RUNNER, said)


def _bare(name: str) -> str:
    return name.partition("[")[0]


def conclude(
    case: VerificationSpec,
    tree: Tree,
    checks: Sequence[Check],
    observations: Sequence[Observation],
    findings: Iterable[Finding],
) -> Verdict:
    """Combine all findings into a verdict; one finding against the attempt rejects it."""
    unique = tuple(dict.fromkeys(findings))
    reports = tuple(observation.report for observation in observations)
    doubts = [finding for finding in unique if finding.severity == "doubt"]
    rejected = _reject_reason(reports, unique)
    grades = [case.most, *(check.runner.most for check in checks)]
    if doubts:
        grades.append(Grade.CHECKED)
    if any(finding.kind is TamperKind.PASSED_BEFORE for finding in doubts):
        grades.append(Grade.RAN)
    return Verdict(
        accepted=not rejected,
        grade=None if rejected else min(grades, key=lambda grade: grade.rank),
        reason=rejected or _accept_reason(reports, doubts),
        tree=tree.digest,
        reports=reports,
        findings=unique,
    )


def _reject_reason(reports: Sequence[CheckReport], findings: Sequence[Finding]) -> str:
    forgeries = [finding for finding in findings if finding.severity == "forgery"]
    if forgeries:
        more = f" (and {len(forgeries) - 1} more)" if len(forgeries) > 1 else ""
        return f"forged: {forgeries[0].explanation}{more}"
    for report in reports:
        if not report.passed:
            return f"`{report.command}`: {report.explanation}"
        if report.canaries_caught < report.canaries_planted:
            return f"`{report.command}`: tests that must fail passed"
    rejected = [finding.explanation for finding in findings if finding.severity == "rejected"]
    if rejected:
        return rejected[0]
    return "" if reports else "there is no check to decide by"


def _accept_reason(reports: Sequence[CheckReport], doubts: Sequence[Finding]) -> str:
    tests = sum(test.passed for report in reports for test in report.tests)
    planted = sum(report.canaries_planted for report in reports)
    known = sum(len(report.known_failures) for report in reports)
    passed = all_of(tests, "test") if tests else all_of(len(reports), "check")
    if known:
        passed = f"{tests} of {count(tests + known, 'test')}"
    caught = f", and {all_of(planted, 'test')} that must fail did" if planted else ""
    # The doubt that lowers the grade most comes first.
    said = sorted(doubts, key=lambda finding: finding.kind is not TamperKind.PASSED_BEFORE)
    but = f"; not proven: {said[0].explanation}" if said else ""
    return f"{passed} passed{caught}{but}"


def _some(names: Sequence[object]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(str, names[:_SHOWN])) + more


def changed_paths(case: VerificationSpec, tree: Tree) -> tuple[PurePosixPath, ...]:
    """Return the files that the attempt adds, modifies or deletes."""
    if case.changed is not None:
        return case.changed
    return tuple(change.path for change in changes_between(case.pristine, tree))


def changed_python(case: VerificationSpec, tree: Tree) -> tuple[PurePosixPath, ...]:
    """Return the changed Python files that contain code, without tests."""
    return tuple(path for path in _python_work(case, tree) if (tree.text(path) or "").strip())


def removed_python(case: VerificationSpec, tree: Tree) -> tuple[PurePosixPath, ...]:
    """Return the Python files that the attempt deletes or empties, without tests."""
    return tuple(
        path
        for path in _python_work(case, tree)
        if not (tree.text(path) or "").strip()
        and (case.changed is not None or (case.pristine.text(path) or "").strip())
    )


def _python_work(case: VerificationSpec, tree: Tree) -> Iterator[PurePosixPath]:
    for path in changed_paths(case, tree):
        is_test = is_test_file(path) or path.name == "conftest.py" or is_protected(case, path)
        if path.suffix == ".py" and not is_test:
            yield path


def added_tests(case: VerificationSpec, tree: Tree) -> dict[PurePosixPath, TreeFile]:
    """Return the test files that the attempt adds to the given ones."""
    if not case.protected:
        return {}
    return {path: tree.files[path] for path in find_tests(tree) if path not in case.pristine.files}


def nothing_changed(case: VerificationSpec, tree: Tree) -> tuple[Finding, ...]:
    """Reject an attempt that changes no file."""
    if changed_paths(case, tree):
        return ()
    said = "no file was changed"
    return (Finding(kind=TamperKind.NO_CHANGE, severity="rejected", explanation=said),)


def not_executed(
    changed: Sequence[PurePosixPath],
    removed: Sequence[PurePosixPath],
    observations: Sequence[Observation],
) -> tuple[Finding, ...]:
    """Report changed files that the tests did not run; reject the attempt if they ran none.

    A file whose module finally came from elsewhere does not count, even if it was executed or
    removed: the tests run another copy.
    """
    runs = [seen.execution for seen in observations if seen.execution is not None]
    replaced = {path for run in runs for path in run.replaced}
    ran = {path for run in runs for path in run.files} - replaced
    missed = [path for path in changed if path not in ran]
    missed += [path for path in removed if path in replaced]
    certain = len(runs) == len(observations) and not any(run.has_children for run in runs)
    if removed and not missed and not ran and any(run.has_children for run in runs):
        said = f"removed, and the tests may run another copy: {_some(removed)}"
        return (doubt(TamperKind.NOT_EXECUTED, said, removed[0]),)
    if not missed or not runs:
        return ()
    others = {name: file for run in runs for name, file in run.elsewhere}
    name = next(iter(others), "")
    instead = f"; they import `{name}` from {others[name]}" if others else ""
    if not ran and (certain or others):
        said = f"the tests do not run the changed files{instead}"
        return (Finding(kind=TamperKind.NOT_EXECUTED, severity="rejected", explanation=said),)
    said = f"changed, and not seen to run in the tests: {_some(missed)}{instead}"
    return (doubt(TamperKind.NOT_EXECUTED, said, missed[0]),)


def says_nothing_new(before: CheckReport, after: CheckReport) -> bool:
    """Whether a check that passes now also passed on the original files."""
    if not after.tests:
        return before.passed
    passed = {test.id for test in before.tests if test.passed}
    return all(test.id in passed for test in after.tests if test.passed)


def fixes_given_tests(
    before: CheckReport, after: CheckReport, added: Iterable[PurePosixPath]
) -> bool:
    """Whether a test that the agent did not add passes now, and did not before."""
    passed = {test.id for test in before.tests if test.passed}
    own = {str(path) for path in added}
    own |= {".".join(path.with_suffix("").parts) for path in added}
    return any(
        test.passed
        and test.id not in passed
        and test.id.partition("::")[0] not in own
        and not any(test.id.startswith(f"{name}.") for name in own)
        for test in after.tests
    )


def without_added_tests(
    findings: Iterable[Finding], case: VerificationSpec, tree: Tree
) -> tuple[Finding, ...]:
    """Leave out the doubts about tests that the agent added next to deciding ones."""
    added = added_tests(case, tree)
    return tuple(
        finding
        for finding in findings
        if finding.kind is not TamperKind.TESTS_CHANGED
        or finding.severity != "doubt"
        or finding.path not in added
        or "is none of the given tests" not in finding.explanation
    )


def passed_before() -> Finding:
    """Return the doubt that lowers the grade to `ran`: checks passed on the original files."""
    said = "the checks passed on the untouched files as well, so they say nothing about the change"
    return doubt(TamperKind.PASSED_BEFORE, said)
