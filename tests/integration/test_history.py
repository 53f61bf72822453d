"""Programs of a run see a copy of the git history, and nothing else of the repository."""

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from assay.contracts.workspace import Tree
from assay.storage.git_history import copy_history
from assay.storage.read_workspace import read_workspace
from tests.support.repositories import a_repository, git, plant_programs
from tests.support.undertakings import tell

SECRET = "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYzZ9qT4hV1x\n"  # noqa: S105 - made up


def a_workspace(folder: Path) -> None:
    """Create two commits; the first has a secret under each kind of name."""
    folder.mkdir(parents=True)
    (folder / "calc.py").write_text("def add(a, b):\n    return a * b\n")
    (folder / ".env").write_text(SECRET)
    (folder / "deploy.cfg").write_text(f"# keys\n{SECRET}")
    (folder / "data.bin").write_bytes(b"\0" * (2 << 20))
    (folder / "link").symlink_to("calc.py")
    a_repository(folder)
    (folder / "deploy.cfg").write_text("none\n")
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    git(folder, "commit", "-qam", "second")
    git(folder, "remote", "add", "origin", "https://user:secret@example.org/x.git")
    git(folder, "branch", "other")
    (folder / ".git" / "hooks").mkdir(exist_ok=True)
    (folder / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\n")


async def test_git_works_in_the_sandbox_of_a_run(tmp_path: Path) -> None:
    a_workspace(tmp_path / "workspace")
    (tmp_path / "workspace" / "mine.txt").write_text("uncommitted\n")
    commands = (
        "git log --format=%s > log.out",
        "git status --short > status.out",
        "git blame -s calc.py > blame.out",
        "git diff > diff.out",
        "git show HEAD~1:deploy.cfg HEAD:.env HEAD:data.bin > withheld.out",
        "git log -p > patches.out",
        "git remote > remotes.out",
        "git branch -a > branches.out",
        "ls .git > listed.out",
    )
    old, new = "    return a - b", "    return a + b"
    script = f"EDIT: calc.py\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE"
    runs = "\n".join(f"RUN: {command}" for command in commands)
    story = await tell(
        tmp_path,
        ["1. fix it", script, runs, "DONE"],
        checks=("grep -rq 'a + b' --include=c*.py .",),
    )

    assert story.outcome.accepted
    found = {path.stem: path.read_text() for path in story.workspace.glob("*.out")}
    assert found["log"] == "second\nfirst\n"
    assert " M calc.py\n?? log.out\n?? mine.txt\n" in found["status"]
    assert ".env" not in found["status"]
    assert "link" not in found["status"]
    assert "return a + b" in found["blame"]
    assert "+    return a + b" in found["diff"]
    assert found["withheld"].count("Assay withholds") == 3
    assert "-    return a * b" in found["patches"]
    assert not any("wJalr" in text for text in found.values())
    assert (found["remotes"], found["branches"]) == ("", "* main\n")
    assert "hooks" not in found["listed"]
    assert git(story.workspace, "rev-list", "--count", "HEAD") == "2"
    assert not [one for one in story.outcome.changes if ".git" in one.path.parts]


def test_the_copy_has_only_objects_refs_and_a_minimal_configuration(tmp_path: Path) -> None:
    a_workspace(tmp_path / "work")

    history = copy_history(tmp_path / "work", read_workspace(tmp_path / "work"))

    names = {str(path) for path in history.tree.files}
    assert {one.partition("/")[2].partition("/")[0] for one in names} == {
        *("HEAD", "config", "index", "objects", "packed-refs", "refs"),
    }
    config = next(file for path, file in history.tree.files.items() if path.name == "config")
    assert b"remote" not in config.content
    assert history.note == "3 files of the git history withheld from the sandbox"


def test_names_that_the_user_adds_are_withheld_in_every_commit(tmp_path: Path) -> None:
    a_workspace(tmp_path / "work")
    tree = read_workspace(tmp_path / "work", secret_names=("calc.py",))

    history = copy_history(tmp_path / "work", tree, ("calc.py",))

    # Both versions of `calc.py`, in addition to those that are withheld without the setting.
    assert history.note == "5 files of the git history withheld from the sandbox"


def test_a_long_history_is_cut_and_the_cut_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a").write_text("0")
    a_repository(folder)
    for number in range(1, 205):
        git(folder, "commit", "-q", "--allow-empty", "-m", str(number))

    history = copy_history(folder, read_workspace(folder))

    assert history.note == "the sandbox has the last 200 of 205 commits"
    assert ".git/shallow" in {str(path) for path in history.tree.files}


@pytest.mark.parametrize("kind", ["file", "alternates", "link"])
def test_a_repository_that_leads_elsewhere_has_no_history_and_the_reason_is_reported(
    tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "work"
    a_workspace(folder)
    if kind == "file":
        (folder / ".git").rename(tmp_path / "elsewhere")
        (folder / ".git").write_text(f"gitdir: {tmp_path / 'elsewhere'}\n")
    elif kind == "alternates":
        (folder / ".git" / "objects" / "info").mkdir(exist_ok=True)
        (folder / ".git" / "objects" / "info" / "alternates").write_text("/elsewhere\n")
    else:
        (folder / ".git" / "refs" / "heads" / "x").symlink_to("/etc/passwd")

    history = copy_history(folder, Tree())

    assert not history.tree.files
    assert history.note.startswith("the sandbox has no git history: ")


def test_a_folder_without_a_repository_has_no_history_and_no_note(tmp_path: Path) -> None:
    history = copy_history(tmp_path, Tree())

    assert (dict(history.tree.files), history.note) == ({}, "")


def test_nothing_that_a_repository_configures_is_run_for_the_copy(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    a_workspace(folder)
    mark = plant_programs(folder, tmp_path / "program")

    history = copy_history(folder, read_workspace(folder))

    assert history.tree.files
    assert not mark.exists()
    # The control: git without Assay's options runs what the repository configures.
    with suppress(subprocess.CalledProcessError):
        git(folder, "status", "--porcelain")
    assert mark.exists()
