"""The judged tree has only what counts, and says what it leaves out."""

from pathlib import PurePosixPath

import pytest

from assay.agent.verify.case import Case
from assay.agent.verify.pristine import judged_tree
from assay.agent.verify.python_pytest import PytestRunner
from assay.contracts.verdict import Finding, Trick
from assay.contracts.workspace import Tree, TreeFile

CONFIGURATION = PytestRunner.configuration


def tree(**files: str) -> Tree:
    return Tree(
        files={PurePosixPath(path): TreeFile(text.encode()) for path, text in files.items()}
    )


BEFORE = tree(**{"calc.py": "old", "tests/test_calc.py": "tests", "data/a.txt": "a"})
CASE = Case(pristine=BEFORE, checks=("pytest",), protected=(PurePosixPath("tests/test_calc.py"),))


def judge(case: Case = CASE, **files: str) -> tuple[Tree, tuple[Finding, ...]]:
    return judged_tree(case, BEFORE.with_files(tree(**files).files), CONFIGURATION)


def test_changes_to_other_files_are_taken() -> None:
    judged, findings = judge(**{"calc.py": "new", "kit/more.py": "x = 1"})

    assert judged == BEFORE.with_files(tree(**{"calc.py": "new", "kit/more.py": "x = 1"}).files)
    assert not findings


def test_a_file_may_be_deleted() -> None:
    judged, findings = judged_tree(
        CASE, BEFORE.without([PurePosixPath("data/a.txt")]), CONFIGURATION
    )

    assert PurePosixPath("data/a.txt") not in judged.files
    assert not findings


@pytest.mark.parametrize(
    ("path", "trick", "severity"),
    [
        ("tests/test_calc.py", Trick.TESTS_CHANGED, "forgery"),
        ("tests/__init__.py", Trick.TESTS_CHANGED, "forgery"),
        ("tests/test_calc/__init__.py", Trick.TESTS_CHANGED, "forgery"),
        ("test_calc.py", Trick.TESTS_CHANGED, "forgery"),
        ("conftest.py", Trick.RUNNER_CONFIG, "forgery"),
        ("deep/er/conftest.py", Trick.RUNNER_CONFIG, "forgery"),
        ("pytest.ini", Trick.RUNNER_CONFIG, "forgery"),
        ("pyproject.toml", Trick.RUNNER_CONFIG, "note"),
        ("sitecustomize.py", Trick.STARTUP_HOOK, "forgery"),
        ("lib/x.pth", Trick.STARTUP_HOOK, "forgery"),
        ("pytest.py", Trick.SHADOWED_RUNNER, "forgery"),
        ("src/pytest/__init__.py", Trick.SHADOWED_RUNNER, "forgery"),
        ("tests/json.py", Trick.SHADOWED_RUNNER, "forgery"),
    ],
)
def test_what_could_forge_is_left_out_and_named(path: str, trick: Trick, severity: str) -> None:
    judged, findings = judge(**{path: "something else"})

    assert judged.digest == BEFORE.digest
    assert [(finding.trick, finding.severity) for finding in findings] == [(trick, severity)]
    assert findings[0].path == PurePosixPath(path)
    assert path in findings[0].explanation


def test_deleted_tests_come_back() -> None:
    judged, findings = judged_tree(
        CASE, BEFORE.without([PurePosixPath("tests/test_calc.py")]), CONFIGURATION
    )

    assert judged.digest == BEFORE.digest
    assert [finding.trick for finding in findings] == [Trick.TESTS_DELETED]


def test_everything_in_a_protected_folder_is_protected() -> None:
    case = Case(pristine=BEFORE, checks=("pytest",), protected=(PurePosixPath("tests"),))

    judged, findings = judge(case, **{"tests/test_calc.py": "x", "tests/test_more.py": "y"})

    assert judged.digest == BEFORE.digest
    assert [finding.severity for finding in findings] == ["forgery", "note"]


def test_settings_for_the_runner_in_a_shared_file_are_forgery() -> None:
    _, findings = judge(**{"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--co'\n"})

    assert findings[0].severity == "forgery"


def test_a_path_that_is_not_allowed_is_only_left_out() -> None:
    case = Case(pristine=BEFORE, checks=("pytest",), protected=(), allowed=("calc.py", "kit/*"))

    judged, findings = judge(case, **{"calc.py": "new", "kit/a/b.py": "", "other.py": "x"})

    assert PurePosixPath("other.py") not in judged.files
    assert PurePosixPath("kit/a/b.py") in judged.files
    assert [(finding.severity, str(finding.path)) for finding in findings] == [("note", "other.py")]


def test_caches_and_compiled_files_are_not_worth_a_word() -> None:
    files = {"__pycache__/calc.cpython-311.pyc": "", "calc.pyc": "", ".pytest_cache/v/x": ""}

    judged, findings = judge(**files)

    assert judged.digest == BEFORE.digest
    assert not findings


def test_a_name_of_the_standard_library_that_nobody_leans_on_is_taken() -> None:
    judged, findings = judge(**{"calendar.py": "x = 1"})

    assert PurePosixPath("calendar.py") in judged.files
    assert [finding.severity for finding in findings] == ["note"]


def test_a_package_may_have_tests_in_it() -> None:
    tests = (PurePosixPath("kit/test_a.py"), PurePosixPath("kit/shapes.py"))
    case = Case(pristine=BEFORE, checks=("pytest",), protected=tests)
    files = {"kit/__init__.py": "", "kit/json.py": "", "shapes.py": ""}

    judged, findings = judge(case, **files)

    assert judged == BEFORE.with_files(tree(**files).files)
    assert not findings


def test_a_link_above_a_test_is_forgery_and_elsewhere_a_note() -> None:
    proposal = Tree(
        files=BEFORE.without([PurePosixPath("tests/test_calc.py")]).files,
        links=(PurePosixPath("tests"), PurePosixPath("shortcut")),
    )

    judged, findings = judged_tree(CASE, proposal, CONFIGURATION)

    assert judged.digest == BEFORE.digest
    assert {finding.trick for finding in findings} == {Trick.LINKED_FILE}
    assert {str(f.path): f.severity for f in findings if len(f.path.parts) == 1} == {
        "tests": "forgery",
        "shortcut": "note",
    }
