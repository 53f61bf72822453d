"""Globs of settings match whole paths, names and folders; globs of a shell match part by part."""

from pathlib import PurePosixPath

import pytest

from assay.text.globs import matches, matches_in_shell


@pytest.mark.parametrize(
    ("path", "pattern", "named"),
    [
        ("main.py", "**/*.py", True),
        ("src/main.py", "**/*.py", True),
        ("main.js", "**/*.py", False),
        ("src/main.py", "**/src/**", True),
        ("lib/src/main.py", "**/src/**", True),
        ("main.py", "**/src/**", False),
    ],
)
def test_two_stars_stand_for_any_folders_or_none(path: str, pattern: str, *, named: bool) -> None:
    assert matches(PurePosixPath(path), (pattern,)) is named


@pytest.mark.parametrize(
    ("path", "glob", "named"),
    [
        ("a.py", "*.py", True),
        ("tests/a.py", "*.py", False),
        ("tests/a.py", "*/a.py", True),
        ("tests/.a.py", "tests/*.py", False),
        ("tests/.a.py", "tests/.*.py", True),
        ("tests", "tests/*", False),
    ],
)
def test_a_shell_glob_matches_part_by_part_without_hidden_files(
    path: str, glob: str, *, named: bool
) -> None:
    assert matches_in_shell(PurePosixPath(path), PurePosixPath(glob)) is named
