"""Suites are read whole, and what holds a solution never becomes part of a workspace."""

import gzip
import json
from pathlib import Path, PurePosixPath

import pytest

from assay.bench.exercise import Exercise
from assay.bench.polyglot import load_polyglot
from assay.bench.suites import load_folder, load_humaneval, load_suite
from assay.contracts.errors import UsageError
from assay.contracts.workspace import Tree
from tests.support.exercises import POLYGLOT, SECRET, polyglot_clone, simple_suite, write_files

TASK = {
    "task_id": "HumanEval/0",
    "prompt": 'def twice(n):\n    """Return it twice."""\n',
    "entry_point": "twice",
    "canonical_solution": "    return 2 * n\n",
    "test": "\n\ndef check(candidate):\n    assert candidate(2) == 4\n",
}


def everything_shown(exercise: Exercise) -> str:
    trees = (exercise.workspace, exercise.tests, exercise.stub, exercise.pristine)
    texts = [tree.text(path) or "" for tree in trees for path in tree.files]
    return "\n".join([exercise.docs, *texts])


def names(tree: Tree) -> set[str]:
    return {str(path) for path in tree.files}


def by_id(folder: Path, *, strict: bool = False) -> dict[str, Exercise]:
    return {one.id: one for one in load_polyglot(folder, strict=strict).exercises}


def test_polyglot_has_every_exercise_of_a_clone(tmp_path: Path) -> None:
    suite = load_polyglot(polyglot_clone(tmp_path))
    assert {one.id for one in suite.exercises} == set(POLYGLOT)
    assert all(one.reference.files.keys() >= set(one.solution) for one in suite.exercises)


@pytest.mark.parametrize("name", sorted(POLYGLOT))
def test_no_reference_is_in_what_is_shown_of(name: str, tmp_path: Path) -> None:
    exercise = by_id(polyglot_clone(tmp_path))[name]
    assert SECRET not in everything_shown(exercise)
    assert any(SECRET.encode() in file.content for file in exercise.reference.files.values())
    assert not {part for path in exercise.pristine.files for part in path.parts if part[0] == "."}


def test_docs_are_put_together_as_the_original_does(tmp_path: Path) -> None:
    docs = by_id(polyglot_clone(tmp_path))["python/adding"].docs
    assert docs == "# Introduction\nAdd two numbers.\nWhole numbers.\n"


def test_tests_and_their_cases_are_no_part_of_the_workspace(tmp_path: Path) -> None:
    exercise = by_id(polyglot_clone(tmp_path))["go/adding"]
    assert names(exercise.tests) == {"adding_test.go", "cases_test.go"}
    assert names(exercise.workspace) == {"adding.go", "go.mod"}


def test_build_files_are_not_among_what_is_to_be_written(tmp_path: Path) -> None:
    exercises = by_id(polyglot_clone(tmp_path))
    assert exercises["rust/adding"].solution == (PurePosixPath("src/lib.rs"),)
    assert "gradlew" not in names(exercises["java/adding"].workspace)


def test_cpp_is_worked_on_in_a_folder_of_its_name(tmp_path: Path) -> None:
    exercise = by_id(polyglot_clone(tmp_path))["cpp/adding"]
    assert exercise.folder == PurePosixPath("adding")
    assert exercise.solution == (
        PurePosixPath("adding/adding.cpp"),
        PurePosixPath("adding/adding.h"),
    )


def test_tests_are_switched_on_as_the_original_does_or_all_of_them(tmp_path: Path) -> None:
    folder = polyglot_clone(tmp_path)
    usual, strict = by_id(folder), by_id(folder, strict=True)
    spec = PurePosixPath("adding.spec.js")
    assert "xtest(" not in (usual["javascript/adding"].tests.text(spec) or "")
    assert "xit(" in (usual["javascript/adding"].tests.text(spec) or "")
    assert "xit(" not in (strict["javascript/adding"].tests.text(spec) or "")
    java = PurePosixPath("src/test/java/AddingTest.java")
    assert "@Disabled(" not in (usual["java/adding"].tests.text(java) or "")


def test_the_commit_of_a_clone_is_told(tmp_path: Path) -> None:
    folder = polyglot_clone(tmp_path)
    assert load_polyglot(folder).source == "a folder without a commit"
    write_files(folder, {".git/HEAD": "ref: refs/heads/main\n"})
    write_files(folder, {".git/refs/heads/main": f"{'ab' * 20}\n"})
    assert load_polyglot(folder).source == f"commit {'ab' * 20} (not the pinned one)"


def test_a_damaged_exercise_is_named(tmp_path: Path) -> None:
    folder = polyglot_clone(tmp_path)
    (folder / "go/exercises/practice/adding/adding.go").unlink()
    with pytest.raises(UsageError, match="go/adding is damaged"):
        load_polyglot(folder)


@pytest.mark.parametrize("compressed", [True, False])
def test_humaneval_is_read_plain_or_compressed(tmp_path: Path, compressed: bool) -> None:  # noqa: FBT001 - a parameter
    path = tmp_path / "file"
    content = json.dumps(TASK).encode() + b"\n"
    path.write_bytes(gzip.compress(content) if compressed else content)
    (exercise,) = load_humaneval(path).exercises
    assert exercise.id == "HumanEval/0"
    assert "return 2 * n" not in everything_shown(exercise)
    assert "def test_twice():" in (exercise.tests.text(PurePosixPath("solution_test.py")) or "")


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\x1f\x8bbroken", b"\xff\xfe\n"])
def test_what_is_no_humaneval_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"HumanEval|exercise") as refused:
        load_humaneval(path)
    assert "--dataset" in refused.value.hint


def test_a_folder_is_a_suite(tmp_path: Path) -> None:
    suite = load_folder(simple_suite(tmp_path / "mine", 2))
    assert suite.name == "mine"
    assert [one.id for one in suite.exercises] == ["python/adding-0", "python/adding-1"]
    assert SECRET not in everything_shown(suite.exercises[0])


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("exercise.toml", 'language = "cobol"\nsolution = ["a"]\n', "language"),
        (
            "exercise.toml",
            'language = "python"\nsolution = ["other.py"]\n',
            "other.py is not there",
        ),
        ("exercise.toml", 'language = "python"\nsolution = []\n', "solution"),
        ("exercise.toml", "language =\n", "is no exercise"),
        ("exercise.toml", 'language = "python"\nsolution = ["adding.py"]\nmore = 1\n', "more"),
    ],
)
def test_what_is_wrong_with_an_exercise_is_said(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    simple_suite(tmp_path, 1)
    write_files(tmp_path / "adding-0", {name: text})
    with pytest.raises(UsageError, match=told):
        load_folder(tmp_path)


def test_a_suite_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    for name, hint in (("polyglot", "bench pull"), ("humaneval", "--dataset"), ("other", "choose")):
        with pytest.raises(UsageError) as refused:
            load_suite(name, dataset=None, cache_dir=tmp_path)
        assert hint in refused.value.hint


def test_the_digest_tells_versions_of_an_exercise_apart(tmp_path: Path) -> None:
    before = load_folder(simple_suite(tmp_path, 1))
    write_files(tmp_path / "adding-0", {"reference/adding.py": "add = sum\n"})
    assert load_folder(tmp_path).digest != before.digest
