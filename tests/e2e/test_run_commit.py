"""`assay run --commit` and `--branch` from outside, with a scripted model."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from assay.contracts.errors import ExitCode
from tests.support.repositories import a_repository, git

TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
RIGHT = "def add(a, b):\n    return a + b\n"
GOAL = ("run", "Write calc.py with add(a, b)", "--tests", "test_calc.py", "--yes", "--json")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "test_calc.py").write_text(TEST)
    (folder / "calc.py").write_text("def add(a, b):\n    return a * b\n")
    a_repository(folder)
    return folder


def assay(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = folder.parent / "script.jsonl"
    facts = {"facts": {"local": True, "small": True, "tool_calls": False}}
    lines = [facts, {"text": f"```python calc.py\n{RIGHT}```"}]
    script.write_text("\n".join(json.dumps(line) for line in lines))
    state = {
        "XDG_STATE_HOME": str(folder.parent / "state"),
        "ASSAY_SANDBOX__POOL_SIZE": "0",
        "ASSAY_MODELS__DEFAULT": f"scripted:{script}",
    }
    return subprocess.run(
        [sys.executable, "-m", "assay", *words],
        cwd=folder,
        env={**os.environ, **state, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.timeout(300)
def test_an_accepted_change_is_committed_on_a_new_branch_and_then_on_this_one(
    workspace: Path,
) -> None:
    done = assay(workspace, *GOAL, "--branch", "fix")

    assert done.returncode == ExitCode.ACCEPTED, done.stderr
    made = json.loads(done.stdout)["commit"]
    assert git(workspace, "rev-parse", "fix") == made
    assert git(workspace, "status", "--porcelain") == ""
    assert git(workspace, "show", f"{made}:calc.py") == RIGHT.strip("\n")
    assert "a * b" in (workspace / "calc.py").read_text()

    done = assay(workspace, *GOAL, "--commit")

    assert done.returncode == ExitCode.ACCEPTED, done.stderr
    outcome = json.loads(done.stdout)
    assert git(workspace, "rev-parse", "main") == outcome["commit"]
    assert git(workspace, "status", "--porcelain") == ""
    assert git(workspace, "show", "--format=", "--name-only", "main") == "calc.py"
    assert "Assay-Grade: proven" in git(workspace, "log", "-1", "--format=%B")
    digest = subprocess.run(
        ["/usr/bin/sha256sum", outcome["certificate"]], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    assert f"Assay-Certificate: sha256:{digest}" in git(workspace, "log", "-1", "--format=%B")


@pytest.mark.timeout(300)
def test_a_change_on_a_branch_is_verified_applied_and_taken_back(workspace: Path) -> None:
    done = assay(workspace, *[word for word in GOAL if word != "--json"], "--branch", "fix")
    (verify,) = re.findall(r"(?m)^assay verify .* --workspace DIR", done.stdout)
    checkout = workspace.parent / "checkout"
    git(workspace, "worktree", "add", "-q", str(checkout), "fix")

    verified = assay(workspace, *shlex.split(verify)[1:-1], str(checkout))
    applied = assay(workspace, "apply", "--yes")
    written = (workspace / "calc.py").read_text()
    undone = assay(workspace, "undo", "--yes")

    assert verified.returncode == 0, verified.stderr
    assert (applied.returncode, written) == (0, RIGHT), applied.stderr
    assert undone.returncode == 0, undone.stderr
    assert git(workspace, "status", "--porcelain") == ""


def test_uncommitted_changes_are_refused_before_the_first_model_call(workspace: Path) -> None:
    (workspace / "calc.py").write_text("mine")

    done = assay(workspace, *GOAL, "--commit")

    assert done.returncode == ExitCode.USAGE
    assert "your uncommitted changes of calc.py" in done.stderr
    assert "--allow" in done.stderr
    assert not list((workspace.parent / "state").glob("assay/runs/*"))
