from pathlib import PurePosixPath

import pytest

from assay.agent.target_files import find_imported, find_targets, names_wanted, only_imported
from assay.contracts.workspace import Tree, TreeFile

TEST = PurePosixPath("tests/test_it.py")


def tree_with_test(source: str, *others: str) -> Tree:
    files = {TEST: TreeFile(source.encode())}
    files.update({PurePosixPath(name): TreeFile(b"") for name in others})
    return Tree(files=files)


def targets_of(
    goal: str,
    tree: Tree,
    *,
    test: PurePosixPath = TEST,
    allowed: tuple[str, ...] = (),
    guess: bool = True,
) -> tuple[PurePosixPath, ...]:
    return find_targets(goal, tree, tests=(test,), protected=(test,), allowed=allowed, guess=guess)


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

    found = targets_of("do it", tree)

    assert found == (PurePosixPath(target),)


@pytest.mark.parametrize("source", ["import json, pytest, numpy", "not python at all (", ""])
def test_libraries_and_nonsense_are_no_targets(source: str) -> None:
    assert targets_of("do it", tree_with_test(source)) == ()


def test_what_may_be_changed_decides_if_it_has_names() -> None:
    tree = tree_with_test("from shapes import area")

    found = targets_of("write x.py", tree, allowed=("lib/a.py",))

    assert found == (PurePosixPath("lib/a.py"),)


def test_files_in_the_words_of_the_goal_are_targets() -> None:
    found = targets_of("Write tools/fix.py and app.js.", Tree(), allowed=("*",), guess=False)

    assert found == (PurePosixPath("tools/fix.py"), PurePosixPath("app.js"))


def test_a_test_is_never_a_target() -> None:
    tree = tree_with_test("import shapes")

    found = targets_of(f"make {TEST} pass", tree)

    assert TEST not in found


def test_a_javascript_test_names_what_it_loads() -> None:
    test = PurePosixPath("test/sum.test.js")
    tree = Tree(files={test: TreeFile(b"const { sum } = require('../lib/sum');")})

    found = targets_of("do it", tree, test=test)

    assert found == (PurePosixPath("lib/sum.js"),)


def test_a_script_that_tests_start_is_not_only_imported() -> None:
    source = "import report\nimport subprocess\nsubprocess.run(['python', 'report.py'])\n"

    assert only_imported((TEST,), tree_with_test(source)) == frozenset()
    assert only_imported((TEST,), tree_with_test("import report")) == {PurePosixPath("report.py")}


def test_names_that_tests_import_have_to_be_defined() -> None:
    tree = tree_with_test("from bank import Account, Broke\nfrom json import loads\nimport bank\n")

    assert names_wanted((TEST,), PurePosixPath("bank.py"), tree) == ("Account", "Broke")
    assert names_wanted((TEST,), PurePosixPath("other.py"), tree) == ()


@pytest.mark.parametrize(
    ("source", "declared"),
    [
        ("import freezegun", ""),
        ("from urllib3.exceptions import HTTPError", ""),
        ("import obscure_library", "[project]\ndependencies = ['obscure-library>=2']\n"),
    ],
)
def test_a_third_party_module_is_never_a_target(source: str, declared: str) -> None:
    tree = tree_with_test(source).with_files(
        {PurePosixPath("pyproject.toml"): TreeFile(declared.encode())}
    )

    assert targets_of("do it", tree) == ()


def test_an_import_from_a_package_leads_to_the_module() -> None:
    tree = tree_with_test("from shapes import round", "shapes/__init__.py", "shapes/round.py")

    assert find_imported((TEST,), tree) == (PurePosixPath("shapes/round.py"),)


STUB = b'"""Areas."""\n\ndef area(side):\n    """Compute."""\n    raise NotImplementedError\n'
DONE = b"def area(side):\n    return side * side\n"


@pytest.mark.parametrize(("content", "targets"), [(STUB, ("shapes.py",)), (DONE, ())])
def test_a_model_with_tools_gets_only_stubs_of_what_the_tests_import(
    content: bytes, targets: tuple[str, ...]
) -> None:
    tree = tree_with_test("from shapes import area\nimport missing\n").with_files(
        {PurePosixPath("shapes.py"): TreeFile(content)}
    )

    assert targets_of("do it", tree, guess=False) == tuple(map(PurePosixPath, targets))


def test_a_goal_names_a_file_by_its_end() -> None:
    tree = tree_with_test("", "src/lib/shapes.py", "src/lib/other.py")

    found = targets_of("fix lib/shapes.py and other.py", tree, guess=False)

    assert found == (PurePosixPath("src/lib/shapes.py"), PurePosixPath("src/lib/other.py"))
