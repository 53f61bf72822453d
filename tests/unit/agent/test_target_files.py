from pathlib import PurePosixPath

import pytest

from assay.agent.target_files import find_targets, names_wanted, only_imported
from assay.contracts.workspace import Tree, TreeFile

TEST = PurePosixPath("tests/test_it.py")


def tree_with_test(source: str, *others: str) -> Tree:
    files = {TEST: TreeFile(source.encode())}
    files.update({PurePosixPath(name): TreeFile(b"") for name in others})
    return Tree(files=files)


@pytest.mark.parametrize(
    ("source", "others", "target"),
    [
        ("from shapes import area", (), "shapes.py"),
        ("import shapes", (), "shapes.py"),
        ("from shapes.round import area", (), "shapes/round.py"),
        ("from shapes import area", ("src/shapes.py",), "src/shapes.py"),
        ("from shapes import area", ("shapes/__init__.py",), "shapes/__init__.py"),
        ("from shapes import area", ("tests/shapes.py",), "tests/shapes.py"),
        ("import subprocess\nsubprocess.run(['python', 'report.py'])", (), "report.py"),
    ],
)
def test_what_the_tests_want_is_written(source: str, others: tuple[str, ...], target: str) -> None:
    tree = tree_with_test(source, *others)

    found = find_targets("do it", tree, protected=(TEST,), allowed=())

    assert found == (PurePosixPath(target),)


@pytest.mark.parametrize("source", ["import json, pytest, numpy", "not python at all (", ""])
def test_libraries_and_nonsense_are_no_targets(source: str) -> None:
    assert find_targets("do it", tree_with_test(source), protected=(TEST,), allowed=()) == ()


def test_what_may_be_changed_decides_if_it_has_names() -> None:
    tree = tree_with_test("from shapes import area")

    found = find_targets("write x.py", tree, protected=(TEST,), allowed=("lib/a.py",))

    assert found == (PurePosixPath("lib/a.py"),)


def test_files_in_the_words_of_the_goal_are_targets() -> None:
    found = find_targets("Write tools/fix.py and app.js.", Tree(), protected=(), allowed=("*",))

    assert found == (PurePosixPath("tools/fix.py"), PurePosixPath("app.js"))


def test_a_test_is_never_a_target() -> None:
    tree = tree_with_test("import shapes")

    found = find_targets(f"make {TEST} pass", tree, protected=(TEST,), allowed=())

    assert TEST not in found


def test_a_javascript_test_names_what_it_loads() -> None:
    test = PurePosixPath("test/sum.test.js")
    tree = Tree(files={test: TreeFile(b"const { sum } = require('../lib/sum');")})

    found = find_targets("do it", tree, protected=(test,), allowed=())

    assert found == (PurePosixPath("lib/sum.js"),)


def test_a_script_that_tests_start_is_not_only_imported() -> None:
    source = "import report\nimport subprocess\nsubprocess.run(['python', 'report.py'])\n"

    assert only_imported((TEST,), tree_with_test(source)) == frozenset()
    assert only_imported((TEST,), tree_with_test("import report")) == {PurePosixPath("report.py")}


def test_names_that_tests_import_have_to_be_defined() -> None:
    tree = tree_with_test("from bank import Account, Broke\nfrom json import loads\nimport bank\n")

    assert names_wanted((TEST,), PurePosixPath("bank.py"), tree) == ("Account", "Broke")
    assert names_wanted((TEST,), PurePosixPath("other.py"), tree) == ()
