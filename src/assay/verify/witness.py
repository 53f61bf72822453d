"""Decide whether the checks exercise the change: whether it ran, and whether it mattered."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.verdict import CheckReport, Finding, TamperKind
from assay.contracts.workspace import Tree, TreeFile, changes_between
from assay.verify.discovery import find_tests
from assay.verify.judged_tree import is_protected
from assay.verify.python_tests import is_test_file
from assay.verify.runner import Observation
from assay.verify.spec import VerificationSpec

_SHOWN: Final = 3


def changed_paths(case: VerificationSpec, tree: Tree) -> tuple[PurePosixPath, ...]:
    """Return the files that the attempt adds, modifies or deletes."""
    if case.changed is not None:
        return case.changed
    return tuple(change.path for change in changes_between(case.pristine, tree))


def changed_python(case: VerificationSpec, tree: Tree) -> tuple[PurePosixPath, ...]:
    """Return the changed Python files that contain code, without tests."""
    return tuple(
        path
        for path in changed_paths(case, tree)
        if path.suffix == ".py"
        and not (is_test_file(path) or path.name == "conftest.py" or is_protected(case, path))
        and (tree.text(path) or "").strip()
    )


def removed_python(case: VerificationSpec, tree: Tree) -> tuple[PurePosixPath, ...]:
    """Return the Python files that the attempt deletes or empties, without tests."""
    return tuple(
        path
        for path in changed_paths(case, tree)
        if path.suffix == ".py"
        and not (is_test_file(path) or path.name == "conftest.py" or is_protected(case, path))
        and not (tree.text(path) or "").strip()
        and (case.changed is not None or (case.pristine.text(path) or "").strip())
    )


def added_tests(case: VerificationSpec, tree: Tree) -> dict[PurePosixPath, TreeFile]:
    """Return the test files that the attempt adds to the given ones."""
    if not case.protected:
        return {}
    return {path: tree.files[path] for path in find_tests(tree) if path not in case.pristine.files}


def nothing_changed(case: VerificationSpec, tree: Tree) -> tuple[Finding, ...]:
    """Reject an attempt that changes no file."""
    if changed_paths(case, tree):
        return ()
    return (_rejected(TamperKind.NO_CHANGE, "no file was changed"),)


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
        return (_perhaps_replaced(removed),)
    if not missed or not runs:
        return ()
    others = {name: file for run in runs for name, file in run.elsewhere}
    if not ran and (certain or others):
        return (
            _rejected(
                TamperKind.NOT_EXECUTED, f"the tests do not run the changed files{_from(others)}"
            ),
        )
    said = f"changed, and not seen to run in the tests: {_some(missed)}{_from(others)}"
    return (
        Finding(trick=TamperKind.NOT_EXECUTED, severity="doubt", explanation=said, path=missed[0]),
    )


def _perhaps_replaced(removed: Sequence[PurePosixPath]) -> Finding:
    said = f"removed, and the tests may run another copy: {_some(removed)}"
    return Finding(
        trick=TamperKind.NOT_EXECUTED, severity="doubt", explanation=said, path=removed[0]
    )


def says_nothing_new(before: CheckReport, after: CheckReport) -> bool:
    """Whether a check that passes now also passed on the original files."""
    if not after.tests:
        return before.passed
    passed = {test.id for test in before.tests if test.passed}
    return all(test.id in passed for test in after.tests if test.passed)


def passed_before() -> Finding:
    """Return the doubt that lowers the grade to `ran`: checks passed on the original files."""
    said = "the checks passed on the untouched files as well, so they say nothing about the change"
    return Finding(trick=TamperKind.PASSED_BEFORE, severity="doubt", explanation=said)


def _from(others: dict[str, str]) -> str:
    if not others:
        return ""
    name, file = next(iter(others.items()))
    return f"; they import `{name}` from {file}"


def _some(paths: Sequence[PurePosixPath]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(map(str, paths[:_SHOWN])) + more


def _rejected(trick: TamperKind, explanation: str) -> Finding:
    return Finding(trick=trick, severity="rejected", explanation=explanation)
