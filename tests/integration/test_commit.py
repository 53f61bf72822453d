"""Commits of accepted changes: only their files, and nothing of a crafted repository is run."""

import hashlib
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest

from assay.contracts.errors import UsageError
from assay.contracts.goal import RunRequest
from assay.contracts.verdict import Grade, Verdict
from assay.contracts.workspace import Tree, TreeFile
from assay.runs.delivery import CERTIFICATE, check_commit, commit_result
from assay.storage.git_commit import commit_message
from assay.storage.git_repository import open_repository
from assay.storage.journal import DiskJournal
from assay.storage.read_workspace import read_workspace, write_tree
from assay.storage.run_store import Run, RunStore
from tests.support.killed import is_killed, starts_a_program
from tests.support.loops import run_apart
from tests.support.repositories import a_repository, git, plant_programs
from tests.support.stored_runs import a_tree, store_a_run

BEFORE = a_tree(calc="return a - b\n", other="1\n", sub__gone="gone\n")
AFTER = a_tree(calc="return a + b\n", other="1\n", new__file="new\r\nlast")
ODD = PurePosixPath("with\nnewline")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tree(tmp_path / "work", BEFORE)
    a_repository(tmp_path / "work")
    return tmp_path / "work"


def a_run(folder: Path, before: Tree = BEFORE, after: Tree = AFTER, *, branch: str = "") -> Run:
    state_dir = folder.parent / "state"
    run = run_apart(store_a_run, state_dir, folder, before, after)
    request = RunRequest(
        goal="Add numbers\n\nAnd more.", workspace=folder, commit=not branch, branch=branch
    )
    return Run(id=run.id, folder=run.folder, created_at=run.created_at, request=request)


async def commit(run: Run, before: Tree = BEFORE, after: Tree = AFTER) -> str:
    verdict = Verdict(accepted=True, grade=Grade.PROVEN, reason="", tree=after.digest, reports=())
    async with DiskJournal(run.folder) as journal:
        return await commit_result(run, journal, before, after, verdict)


def asked(folder: Path, **more: object) -> RunRequest:
    return RunRequest(goal="x", workspace=folder, commit=not more.get("branch"), **more)  # pyright: ignore[reportArgumentType] - fields of the request


def check(folder: Path, **more: object) -> None:
    run_apart(check_commit, asked(folder, **more), read_workspace(folder))


def overwrite(folder: Path, tree: Tree) -> None:
    for path in BEFORE.files.keys() - tree.files.keys():
        (folder / path).unlink()
    for path, file in tree.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(file.content)


def test_a_change_is_committed_with_its_trailers_and_nothing_else(folder: Path) -> None:
    run = a_run(folder)
    (folder / "untracked").write_text("mine")
    overwrite(folder, AFTER)

    made = run_apart(commit, run)

    assert git(folder, "rev-parse", "main") == made
    assert git(folder, "status", "--porcelain") == "?? untracked"
    assert git(folder, "show", "--format=", "--name-status", made).split("\n") == [
        "M\tcalc",
        "A\tnew/file",
        "D\tsub/gone",
    ]
    message = git(folder, "log", "-1", "--format=%an <%ae>%n%B", made)
    digest = hashlib.sha256((run.folder / CERTIFICATE).read_bytes()).hexdigest()
    assert message.startswith("Ada <ada@example.org>\nAdd numbers\n\nAnd more.\n")
    assert f"Assay-Grade: proven\nAssay-Certificate: sha256:{digest}" in message
    trailers = git(folder, "log", "-1", "--format=%(trailers:only)", made)
    assert trailers.startswith("Assay-Grade: proven\n")
    git(folder, "fsck", "--strict")


def test_a_new_branch_leaves_folder_and_index_alone(folder: Path) -> None:
    (folder / "other").write_text("staged\n")
    git(folder, "add", "other")
    before = BEFORE.with_files({PurePosixPath("other"): TreeFile(b"staged\n")})
    after = AFTER.with_files({PurePosixPath("other"): TreeFile(b"staged\n")})
    run = a_run(folder, before, after, branch="fix/it")
    status = git(folder, "status", "--porcelain")

    made = run_apart(commit, run, before, after)

    assert git(folder, "rev-parse", "fix/it", "fix/it^").split() == [
        made,
        git(folder, "rev-parse", "main"),
    ]
    assert git(folder, "status", "--porcelain") == status == "M  other"
    assert git(folder, "show", f"{made}:other") == "1"
    assert "uncommitted files of the workspace: 1" in git(folder, "log", "-1", "--format=%B", made)


def test_staged_changes_of_other_files_stay_staged(folder: Path) -> None:
    (folder / "other").write_text("staged\n")
    git(folder, "add", "other")
    check(folder, allowed=("calc",))
    with pytest.raises(UsageError, match="your uncommitted changes of other"):
        check(folder)
    run = a_run(folder)
    overwrite(folder, AFTER.with_files(a_tree(other="staged\n").files))

    made = run_apart(commit, run)

    assert git(folder, "status", "--porcelain") == "M  other"
    assert git(folder, "show", f"{made}:other") == "1"


def test_names_with_newlines_and_executables_are_committed(folder: Path) -> None:
    after = BEFORE.with_files({ODD: TreeFile(b"x", executable=True)})
    run = a_run(folder, after=after, branch="odd")

    made = run_apart(commit, run, BEFORE, after)

    listed = git(folder, "ls-tree", "-r", "-z", made).split("\0")
    assert any(line.startswith("100755") and line.endswith(f"\t{ODD}") for line in listed)


def modified(folder: Path) -> None:
    (folder / "calc").write_text("mine")


def removed(folder: Path) -> None:
    (folder / "calc").unlink()


def staged_new(folder: Path) -> None:
    (folder / "fresh").write_text("mine")
    git(folder, "add", "fresh")


def detached(folder: Path) -> None:
    git(folder, "checkout", "-q", "--detach")


def nameless(folder: Path) -> None:
    git(folder, "config", "--unset", "user.name")


def merging(folder: Path) -> None:
    (folder / ".git" / "MERGE_HEAD").write_text(git(folder, "rev-parse", "HEAD"))


def redirected(folder: Path) -> None:
    (folder / ".git").rename(folder.parent / "elsewhere")
    (folder / ".git").write_text(f"gitdir: {folder.parent / 'elsewhere'}\n")


def linked_objects(folder: Path) -> None:
    (folder / ".git" / "refs" / "heads" / "x").symlink_to("/etc/passwd")


def borrowing(folder: Path) -> None:
    (folder / ".git" / "objects" / "info" / "alternates").write_text("/elsewhere/objects\n")


def piped(folder: Path) -> None:
    (folder / ".git" / "config").unlink()
    os.mkfifo(folder / ".git" / "config")


def endless(folder: Path) -> None:
    git(folder, "config", "include.path", "/dev/zero")


def other_worktree(folder: Path) -> None:
    git(folder, "config", "core.worktree", str(folder.parent))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (modified, "uncommitted changes of calc"),
        (removed, "uncommitted changes of calc"),
        (staged_new, "uncommitted changes of fresh"),
        (detached, "no branch is checked out"),
        (nameless, "does not know who commits"),
        (merging, "a merge or a rebase is in progress"),
        (redirected, "is a link or a file that names another folder"),
        (linked_objects, "has 'x', which is a link or no file"),
        (piped, "has 'config', which is a link or no file"),
        (endless, "git config"),
        (borrowing, "objects/info/alternates"),
        (other_worktree, "leads to another folder"),
    ],
)
def test_a_commit_that_would_fail_is_refused_before_the_run(
    folder: Path, change: Callable[[Path], None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    check(folder)
    change(folder)

    with pytest.raises(UsageError, match=message):
        check(folder)


@pytest.mark.parametrize("name", ["main", "main/x", "a..b", "-x", "with space"])
def test_a_bad_name_for_a_branch_is_refused_before_the_run(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match="branch"):
        check(folder, branch=name)


def test_nothing_that_a_repository_configures_is_run(folder: Path, tmp_path: Path) -> None:
    mark = plant_programs(folder, tmp_path / "program")
    before = read_workspace(folder)
    after = before.with_files({PurePosixPath("calc"): TreeFile(b"return a + b\n")})
    check(folder)
    run_apart(commit, a_run(folder, before, after, branch="new"), before, after)
    run_apart(commit, a_run(folder, before, after), before, after)

    assert not mark.exists()
    # The control: git without Assay's options runs what the repository configures.
    with suppress(subprocess.CalledProcessError):
        git(folder, "status", "--porcelain")
    assert mark.exists()


def test_missing_objects_are_not_fetched(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    git(folder, "config", "extensions.partialClone", "evil")
    git(folder, "config", "core.repositoryFormatVersion", "1")
    git(folder, "config", "remote.evil.url", f"ext::sh -c touch% {mark}")
    git(folder, "config", "remote.evil.promisor", "true")
    git(folder, "config", "protocol.ext.allow", "always")
    tree = git(folder, "rev-parse", "HEAD:sub")
    (folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()

    with pytest.raises(UsageError, match="git ls-tree"):
        check(folder)

    assert not mark.exists()


def test_a_workspace_below_the_root_commits_with_its_prefix(folder: Path) -> None:
    before = a_tree(gone="gone\n")
    run = a_run(folder / "sub", before, a_tree(gone="back\n"))

    made = run_apart(commit, run, before, a_tree(gone="back\n"))

    assert git(folder, "show", "--format=", "--name-only", made) == "sub/gone"
    assert open_repository(folder / "sub").prefix == "sub/"


def test_long_goals_are_cut_and_control_characters_removed() -> None:
    message = commit_message("x" * 80 + "\x1b[31m\n\nrest", (), {"Assay-Grade": "ran"})

    subject, _, body = message.partition("\n\n")
    assert subject == "x" * 71 + "…"
    assert body.startswith("x" * 80 + " [31m\n\nrest\n\nAssay-Grade: ran\n")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_commit_that_is_killed_at_any_moment_is_finished_by_a_second_one(tmp_path: Path) -> None:
    """Each git command is one moment; between two of them, this process is killed."""
    number, killed = 1, True
    while killed:
        folder = tmp_path / str(number) / "work"
        write_tree(folder, BEFORE)
        a_repository(folder)
        run = a_run(folder)
        overwrite(folder, AFTER)
        killed = is_killed(number, lambda: run_apart(commit, run), starts_a_program)  # noqa: B023 - called at once
        git(folder, "fsck", "--strict")
        head = git(folder, "rev-parse", "main")
        made = run_apart(commit, run)
        assert git(folder, "status", "--porcelain") == ""
        assert git(folder, "rev-list", "--count", "main") == "2"
        assert head in {made, git(folder, "rev-parse", "main^")}
        number += 1
    assert number > 10
    assert RunStore(tmp_path / "1" / "state").names()
