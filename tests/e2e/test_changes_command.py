"""`assay diff`, `assay apply` and `assay undo` from outside."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from assay.contracts.errors import ExitCode
from assay.contracts.workspace import Tree
from assay.storage.read_workspace import read_workspace, write_tree
from assay.storage.run_store import Run
from tests.support.loops import run_apart
from tests.support.stored_runs import a_tree, store_a_run

BEFORE = a_tree(calc="return a - b\n", data=b"\0\1", old="gone\n")
AFTER = a_tree(calc="return a + b\n", data=b"\0\2", new="a\r\nb")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    state = str(tmp_path / "state")
    return {"PATH": os.defpath, "HOME": str(tmp_path), "XDG_STATE_HOME": state}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tree(tmp_path / "work", BEFORE)
    return tmp_path / "work"


def a_run(folder: Path, after: Tree = AFTER, *, accepted: bool = True) -> Run:
    state_dir = folder.parent / "state" / "assay"
    store = partial(store_a_run, accepted=accepted)
    return run_apart(store, state_dir, folder, BEFORE, after)


def assay(env: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "assay", *words],
        env=dict(env),
        capture_output=True,
        timeout=100,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_git_applies_the_printed_patch(home: dict[str, str], folder: Path) -> None:
    run = a_run(folder)

    printed = assay(home, "diff", run.id[:-1])
    subprocess.run(
        ["/usr/bin/git", "apply", "-"],
        input=printed.stdout,
        cwd=folder,
        env={"GIT_CEILING_DIRECTORIES": str(folder.parent)},
        check=True,
    )

    assert (printed.returncode, printed.stderr) == (ExitCode.ACCEPTED, b"")
    assert read_workspace(folder) == AFTER


def test_the_changes_are_counted_and_readable_by_programs(
    home: dict[str, str], folder: Path
) -> None:
    run = a_run(folder)

    counted = assay(home, "diff", "--stat").stdout.decode()
    fields = json.loads(assay(home, "diff", "--json").stdout)

    assert " calc |      2 +-\n data | binary\n" in counted
    assert "4 files changed, 3 added (+), 2 deleted (-)" in counted
    assert (fields["run"], fields["accepted"]) == (run.id, True)
    kinds = {one["path"]: one["kind"] for one in fields["changes"]}
    assert kinds == {"calc": "modified", "data": "modified", "new": "added", "old": "deleted"}
    assert "+return a + b\n" in fields["diff"]


def test_a_result_is_applied_and_taken_back_with_the_consent_of_the_user(
    home: dict[str, str], folder: Path
) -> None:
    run = a_run(folder)

    unasked = assay(home, "apply", run.id)
    assert unasked.returncode == ExitCode.USAGE
    assert b"without a terminal, Assay cannot ask\nhint: add --yes" in unasked.stderr
    assert read_workspace(folder) == BEFORE

    applied = assay(home, "apply", run.id, "--yes")
    assert applied.returncode == ExitCode.ACCEPTED, applied.stderr
    assert f"4 files written in '{folder}':\n  M calc\n".encode() in applied.stdout
    assert read_workspace(folder) == AFTER

    undone = json.loads(assay(home, "undo", run.id, "--yes", "--json").stdout)
    assert undone["folder"] == str(folder)
    assert read_workspace(folder) == BEFORE
    assert not (folder / ".assay").exists()


def test_a_result_that_was_not_accepted_is_shown_as_such_and_not_applied(
    home: dict[str, str], folder: Path
) -> None:
    run = a_run(folder, accepted=False)

    printed = assay(home, "diff", run.id)
    applied = assay(home, "apply", run.id, "--yes")

    assert b"was not accepted" in printed.stderr
    assert printed.stdout.startswith(b"diff --git a/calc b/calc\n")
    assert applied.returncode == ExitCode.USAGE
    assert read_workspace(folder) == BEFORE
