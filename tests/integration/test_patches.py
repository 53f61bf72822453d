"""Patches that git itself applies: every tree becomes the other one, byte by byte."""

import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.contracts.workspace import Tree, TreeFile
from assay.storage.read_workspace import read_workspace, write_tree
from assay.text.patches import file_patches

NAMES = ["a.py", "with space", "with\nnewline", 'quo"te', "back\\slash", "tab\there", "ü", "\udcff"]
CONTENTS = [
    b"",
    b"one\n",
    b"one\ntwo",
    b"one\r\ntwo\r\n",
    b"two\nthree\x0cfour\rfive\n",
    b"\xff\xfe latin\n",
    b"\0binary" * 40,
    b"\0other" * 9,
    b"".join(b"%d\n" % number for number in range(40)),
    b"".join(b"%d\n" % number for number in range(40) if number not in (3, 30)),
]
FILES = st.builds(TreeFile, st.sampled_from(CONTENTS), st.booleans())
TREES = st.dictionaries(st.sampled_from(NAMES).map(PurePosixPath), FILES).map(
    lambda files: Tree(files=files)
)


def patch_of(before: Tree, after: Tree) -> bytes:
    return b"".join(one.content for one in file_patches(before, after))


def apply_with_git(folder: Path, patch: bytes, *options: str) -> None:
    if patch:
        subprocess.run(
            ["/usr/bin/git", "apply", *options, "-"],
            cwd=folder,
            input=patch,
            check=True,
            env={"GIT_CEILING_DIRECTORIES": str(folder.parent)},
        )


@settings(max_examples=60, deadline=None)
@given(before=TREES, after=TREES)
def test_git_applies_and_reverses_the_patch_of_any_two_trees(
    tmp_path_factory: pytest.TempPathFactory, before: Tree, after: Tree
) -> None:
    folder = tmp_path_factory.mktemp("work")
    write_tree(folder, before)
    patch = patch_of(before, after)

    apply_with_git(folder, patch)
    assert read_workspace(folder) == after

    apply_with_git(folder, patch, "-R")
    assert read_workspace(folder) == before


def test_a_large_rewritten_file_is_one_hunk_between_the_common_lines(tmp_path: Path) -> None:
    old = b"".join(b"%d\n" % number for number in range(6000))
    new = b"0\n" + b"".join(b"new %d\n" % number for number in range(5000)) + b"5999\n"
    before = Tree(files={PurePosixPath("a"): TreeFile(old)})
    after = Tree(files={PurePosixPath("a"): TreeFile(new)})
    write_tree(tmp_path / "work", before)

    (patch,) = file_patches(before, after)
    apply_with_git(tmp_path / "work", patch.content)

    assert (patch.added, patch.deleted) == (5000, 5998)
    assert read_workspace(tmp_path / "work") == after


def test_numbers_of_lines_are_those_of_git() -> None:
    before = Tree(files={PurePosixPath("a"): TreeFile(b"1\n2\n3\n")})
    after = Tree(files={PurePosixPath("a"): TreeFile(b"1\n3\n4\n5")})

    (patch,) = file_patches(before, after)

    assert (patch.added, patch.deleted, patch.binary) == (2, 1, False)
