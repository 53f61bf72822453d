"""A suite is pulled by git at exactly the pinned commit, tried with a repository of our own."""

import shutil
import subprocess
from pathlib import Path

import pytest

from assay.bench.polyglot import commit_of, pull
from assay.contracts.errors import AssayError, UsageError
from tests.support.exercises import polyglot_clone
from tests.support.requirements import require


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    """A repository with two commits, and the first of them."""
    require("git", available=shutil.which("git") is not None, why="git is not installed")
    folder = polyglot_clone(tmp_path / "upstream")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "First")
    pinned = git(folder, "rev-parse", "HEAD")
    (folder / "README.md").write_text("later\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "Second")
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    return folder, pinned


async def test_the_pinned_commit_is_fetched_and_not_the_newest(
    repository: tuple[Path, str], tmp_path: Path
) -> None:
    upstream, pinned = repository
    clone = tmp_path / "cache" / "polyglot"
    assert await pull(f"file://{upstream}", pinned, clone)
    assert commit_of(clone) == pinned
    assert not (clone / "README.md").exists()
    assert (clone / "python/exercises/practice/adding/adding.py").is_file()
    assert not await pull(f"file://{upstream}", pinned, clone)


async def test_a_commit_that_is_not_there_leaves_nothing_behind(
    repository: tuple[Path, str], tmp_path: Path
) -> None:
    upstream, _ = repository
    clone = tmp_path / "cache" / "polyglot"
    with pytest.raises(AssayError, match="git failed"):
        await pull(f"file://{upstream}", "ab" * 20, clone)
    assert list((tmp_path / "cache").iterdir()) == []


async def test_a_clone_at_another_commit_is_not_touched(
    repository: tuple[Path, str], tmp_path: Path
) -> None:
    upstream, pinned = repository
    clone = tmp_path / "cache" / "polyglot"
    await pull(f"file://{upstream}", pinned, clone)
    with pytest.raises(UsageError, match=f"is at {pinned}"):
        await pull(f"file://{upstream}", "cd" * 20, clone)
    assert commit_of(clone) == pinned
