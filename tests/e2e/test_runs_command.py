"""`assay runs`, `show` and `verify` from outside."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from assay.contracts.errors import ExitCode
from assay.contracts.events import (
    AttemptStarted,
    Executed,
    FilesChanged,
    Planned,
    RunEnded,
    RunStarted,
    Verified,
)
from assay.contracts.goal import RunRequest, RunResult, RunSpec, Status
from assay.contracts.messages import Usage
from assay.contracts.verdict import (
    CheckReport,
    Grade,
    TestMatrix,
    TestMatrixRow,
    TestResult,
    TestStatus,
    Verdict,
)
from assay.contracts.workspace import Tree, TreeFile, changes_between
from assay.storage.certificates import (
    Proof,
    build_certificate,
    describe_environment,
    write_certificate,
)
from assay.storage.journal import DiskJournal
from assay.storage.read_workspace import write_tree
from assay.storage.run_store import Run, RunStore
from assay.storage.signing_keys import signing_key
from tests.support.loops import run_apart
from tests.support.sources import ROOT

CODE, TESTS = PurePosixPath("calc.py"), PurePosixPath("test_calc.py")
TEST_ID = "test_calc.py::test_add"
RIGHT, WRONG = b"def add(a, b):\n    return a + b\n", b"def add(a, b):\n    return a - b\n"
BEFORE = Tree(
    files={
        CODE: TreeFile(WRONG),
        TESTS: TreeFile(
            b"from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
            b"    assert add(-1, 1) == 0\n"
        ),
    }
)
AFTER = BEFORE.with_files({CODE: TreeFile(RIGHT)})
SPEC = RunSpec(goal="add two numbers \x1b[31mloudly", checks=("pytest -q",), protected=(TESTS,))
SPENT = Usage(input_tokens=1200, output_tokens=80, calls=2, cost_usd=0.0123)


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.defpath,
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state" / "assay"


def assay(env: Mapping[str, str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "assay", *map(str, words)],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def verdict_on(tree: Tree) -> Verdict:
    test = TestResult(id=TEST_ID, status=TestStatus.PASSED)
    report = CheckReport(
        command="pytest -q",
        runner="pytest",
        passed=True,
        tests=(test,),
        canaries_planted=2,
        canaries_caught=2,
    )
    return Verdict(
        accepted=True,
        grade=Grade.PROVEN,
        reason="1 test passes",
        tree=tree.digest,
        reports=(report,),
    )


def row(attempt: int, status: TestStatus) -> TestMatrixRow:
    return TestMatrixRow(attempt=attempt, statuses={TEST_ID: status})


def outcome_of(run: Run) -> RunResult:
    return RunResult(
        run=run.id,
        status=Status.ACCEPTED,
        grade=Grade.PROVEN,
        reason="1 test passes",
        attempts=2,
        verdict=verdict_on(AFTER),
        test_matrix=TestMatrix(rows=(row(1, TestStatus.FAILED), row(2, TestStatus.PASSED))),
        findings=(),
        changes=changes_between(BEFORE, AFTER),
        tree=AFTER.digest,
        usage=SPENT,
        wall_s=12.5,
        certificate="work/.assay/x.certificate.json",
    )


def keep_a_run(state_dir: Path, *, ended: bool = True) -> Run:
    """Write down a run as the agent would have."""

    async def write() -> Run:
        run = RunStore(state_dir).create(
            RunRequest(goal=SPEC.goal, workspace=Path("work"), checks=SPEC.checks)
        )
        async with DiskJournal(run.folder) as journal:
            for tree in (BEFORE, AFTER):
                await journal.store_tree(tree)
            journal.emit(
                RunStarted(
                    run=run.id,
                    spec=SPEC,
                    model="scripted:x",
                    backend="native",
                    isolation="isolated",
                    workspace="work",
                    tree=BEFORE.digest,
                )
            )
            journal.emit(Planned(steps=("turn the sign",), targets=(CODE,), checks=("pytest -q",)))
            journal.emit(AttemptStarted(attempt=1, action="sample"))
            test_matrix = TestMatrix(rows=(row(1, TestStatus.FAILED),))
            journal.emit(Executed(attempt=1, reports=(), test_matrix=test_matrix))
            journal.emit(AttemptStarted(attempt=2, action="repair"))
            journal.emit(
                FilesChanged(
                    attempt=2,
                    changes=changes_between(BEFORE, AFTER),
                    diff="",
                    tree=AFTER.digest,
                )
            )
            if ended:
                journal.emit(Verified(attempt=2, verdict=verdict_on(AFTER)))
                journal.emit(RunEnded(outcome=outcome_of(run)))
        return run

    return run_apart(write)


def certify(state_dir: Path, workspace: Path, tree: Tree, run: str = "calm-owl-0001") -> Path:
    """Write the files and a certificate that calls them proven, whatever they are worth."""
    write_tree(workspace, tree)
    proof = Proof(
        run=run,
        spec=SPEC,
        checks=("pytest -q",),
        protected=(TESTS,),
        pristine=BEFORE,
        tree=tree,
        verdict=verdict_on(tree),
        environment=describe_environment(backend="native", isolation="isolated"),
        model="scripted:x",
        usage=SPENT,
    )
    path = workspace / ".assay" / f"{run}.certificate.json"
    write_certificate(path, build_certificate(proof, signing_key(state_dir)))
    return path


def test_the_list_says_what_became_of_each_run(home: dict[str, str], state_dir: Path) -> None:
    run = keep_a_run(state_dir)

    shown = assay(home, "runs")

    assert (shown.returncode, shown.stderr) == (ExitCode.ACCEPTED, "")
    (line,) = (line for line in shown.stdout.splitlines() if line.startswith(run.id))
    for part in ("accepted", "proven", " 2 ", "$0.0123", "add two numbers loudly"):
        assert part in line
    assert "\x1b" not in shown.stdout


def test_the_list_can_be_read_by_programs(home: dict[str, str], state_dir: Path) -> None:
    ended, stopped = keep_a_run(state_dir), keep_a_run(state_dir, ended=False)

    found = json.loads(assay(home, "runs", "--json").stdout)

    status = {one["run"]: (one["status"], one["grade"], one["resumable"]) for one in found}
    assert status == {
        ended.id: ("accepted", "proven", False),
        stopped.id: ("stopped", None, True),
    }
    assert len(json.loads(assay(home, "runs", "--json", "--limit", "1").stdout)) == 1


def test_where_nothing_was_run_there_is_a_hint(home: dict[str, str]) -> None:
    shown = assay(home, "runs")

    assert (shown.returncode, shown.stdout) == (
        ExitCode.ACCEPTED,
        "no runs yet; `assay run GOAL` starts one\n",
    )
    assert json.loads(assay(home, "runs", "--json").stdout) == []


def test_old_runs_are_removed_when_asked(home: dict[str, str], state_dir: Path) -> None:
    run = keep_a_run(state_dir)

    kept = assay(home, "runs", "--delete-older-than", "1", "--yes")
    removed = assay(home, "runs", "--delete-older-than", "0", "--yes")

    assert (kept.stdout, removed.stdout) == ("removed 0\n", f"removed 1: {run.id}\n")
    assert not run.folder.exists()


def test_a_run_is_shown_with_plan_attempts_tests_and_changes(
    home: dict[str, str], state_dir: Path
) -> None:
    run = keep_a_run(state_dir)

    shown = assay(home, "show", run.id[:-1])

    assert (shown.returncode, shown.stderr) == (ExitCode.ACCEPTED, "")
    for part in (
        "plan: 1 step",
        "attempt 2: a repair in the same context",
        f"✓ ✗ ✓ {TEST_ID}",
        "+    return a + b",
        "Accepted, proven",
        "x.certificate.json",
    ):
        assert part in shown.stdout
    assert "\x1b" not in shown.stdout


def test_a_run_that_stopped_says_how_to_go_on(home: dict[str, str], state_dir: Path) -> None:
    run = keep_a_run(state_dir, ended=False)

    shown = assay(home, "show")

    assert f"run {run.id}: stopped" in shown.stdout
    assert f"assay resume {run.id}" in shown.stdout


def test_a_run_can_be_read_by_programs(home: dict[str, str], state_dir: Path) -> None:
    run = keep_a_run(state_dir)

    whole = json.loads(assay(home, "show", run.id, "--json").stdout)
    lines = [json.loads(line) for line in assay(home, "show", "--events").stdout.splitlines()]

    assert (whole["run"], whole["status"], whole["outcome"]["grade"]) == (
        run.id,
        "accepted",
        "proven",
    )
    assert "+    return a + b" in whole["diff"]
    kinds = [event["kind"] for event in whole["events"]]
    assert kinds[0] == "run_started"
    assert kinds[-1] == "run_ended"
    assert [line["event"]["kind"] for line in lines] == kinds


def test_the_files_of_a_run_are_written_to_a_new_folder(
    home: dict[str, str], state_dir: Path, tmp_path: Path
) -> None:
    keep_a_run(state_dir)

    first = assay(home, "show", "--files", tmp_path / "out")
    second = assay(home, "show", "--files", tmp_path / "out")

    assert first.returncode == ExitCode.ACCEPTED
    assert "wrote the accepted state, 2 files" in first.stdout
    assert (tmp_path / "out" / "calc.py").read_bytes() == RIGHT
    assert second.returncode == ExitCode.USAGE
    assert "is not empty" in second.stderr


def test_a_run_that_is_not_there_is_said_to_be_not_there(
    home: dict[str, str], state_dir: Path
) -> None:
    keep_a_run(state_dir)

    shown = assay(home, "show", "nosuch")

    assert shown.returncode == ExitCode.USAGE
    assert shown.stderr == "error: there is no run 'nosuch'\nhint: `assay runs` lists them\n"


def test_a_damaged_run_is_named(home: dict[str, str], state_dir: Path) -> None:
    run = keep_a_run(state_dir)
    with (run.folder / "events.jsonl").open("a") as file:
        file.write("{\n")

    assert "damaged" in assay(home, "runs").stdout
    shown = assay(home, "show")

    assert shown.returncode == ExitCode.INFRASTRUCTURE
    assert "events.jsonl:" in shown.stderr


def test_a_run_whose_files_are_lost_is_shown_without_them(
    home: dict[str, str], state_dir: Path, tmp_path: Path
) -> None:
    run = keep_a_run(state_dir)
    for blob in (run.folder / "blobs").iterdir():
        blob.unlink()

    shown = assay(home, "show")
    written = assay(home, "show", "--files", tmp_path / "out")

    assert shown.returncode == ExitCode.ACCEPTED
    assert "the files cannot be shown" in shown.stdout
    assert written.returncode == ExitCode.INFRASTRUCTURE
    assert not (tmp_path / "out").exists()


def test_an_unchanged_workspace_is_verified(
    home: dict[str, str], state_dir: Path, tmp_path: Path
) -> None:
    certificate = certify(state_dir, tmp_path / "work", AFTER)
    (tmp_path / "work" / "notes.txt").write_text("beside the proof")

    shown = assay(home, "verify", certificate)

    assert (shown.returncode, shown.stderr) == (ExitCode.ACCEPTED, "")
    assert shown.stdout.startswith("verified  proven: add two numbers")
    assert "good, by the key of this machine" in shown.stdout
    assert "2 files, as certified; 1 file beside them took no part" in shown.stdout
    assert "1 of 1 test pass" in shown.stdout


def test_a_certificate_is_verified_where_nothing_is_known_of_the_run(
    home: dict[str, str], state_dir: Path, tmp_path: Path
) -> None:
    certificate = certify(state_dir, tmp_path / "work", AFTER)
    elsewhere = {**home, "XDG_STATE_HOME": str(tmp_path / "another machine")}

    shown = assay(elsewhere, "verify", certificate, "--json")

    told = json.loads(shown.stdout)
    assert shown.returncode == ExitCode.ACCEPTED
    assert (told["status"], told["signed_here"], told["proof"]["holds"]) == (
        "verified",
        False,
        True,
    )
    assert told["proof"]["tests"] == {TEST_ID: "passed"}
    assert told["proof"]["canaries_caught"] == told["proof"]["canaries_planted"] > 0
    # Nothing but the layer of the workspace and the log of the command.
    state = tmp_path / "another machine" / "assay"
    assert {path.name for path in state.iterdir()} == {"layers", "logs"}


def test_a_certificate_is_verified_against_the_files_from_before_the_run(
    home: dict[str, str], state_dir: Path, tmp_path: Path
) -> None:
    run = keep_a_run(state_dir)
    certificate = certify(state_dir, tmp_path / "work", AFTER, run.id)

    told = json.loads(assay(home, "verify", certificate, "--json").stdout)

    assert (told["status"], told["run"], told["grade"]) == ("verified", run.id, "proven")


def test_files_that_were_changed_are_named(
    home: dict[str, str], state_dir: Path, tmp_path: Path
) -> None:
    certificate = certify(state_dir, tmp_path / "work", AFTER)
    (tmp_path / "work" / "calc.py").write_bytes(WRONG)
    (tmp_path / "work" / "test_calc.py").unlink()

    shown = assay(home, "verify", certificate)
    told = json.loads(assay(home, "verify", certificate, "--json").stdout)

    assert shown.returncode == ExitCode.NOT_ACCEPTED
    assert shown.stdout.startswith("changed")
    assert "changed  calc.py" in shown.stdout
    assert "missing  test_calc.py" in shown.stdout
    assert (told["status"], told["changed"], told["missing"], told["proof"]) == (
        "changed",
        ["calc.py"],
        ["test_calc.py"],
        None,
    )


def test_a_proof_that_does_not_hold_names_the_tests(
    home: dict[str, str], state_dir: Path, tmp_path: Path
) -> None:
    certificate = certify(state_dir, tmp_path / "work", BEFORE)

    shown = assay(home, "verify", certificate)

    assert shown.returncode == ExitCode.NOT_ACCEPTED
    assert shown.stdout.startswith("failed")
    assert f"failed  {TEST_ID}" in shown.stdout


def test_a_certificate_that_was_tampered_with_is_refused(
    home: dict[str, str], state_dir: Path, tmp_path: Path
) -> None:
    certificate = certify(state_dir, tmp_path / "work", AFTER)
    certificate.write_text(certificate.read_text().replace("add two numbers", "add 2 numbers"))

    shown = assay(home, "verify", certificate)
    told = json.loads(assay(home, "verify", certificate, "--json").stdout)

    assert shown.returncode == ExitCode.TAMPERING
    assert shown.stdout.startswith("tampered")
    assert "was changed after it was signed" in shown.stdout
    assert told["status"] == "tampered"


def test_the_documented_way_to_check_by_hand_works(state_dir: Path, tmp_path: Path) -> None:
    certificate = certify(state_dir, tmp_path / "work", AFTER)
    text = (ROOT / "docs" / "reference" / "certificate.md").read_text()
    (script,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)

    def check() -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", script, str(certificate), str(tmp_path / "work")]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    good = check()
    (tmp_path / "work" / "calc.py").write_bytes(WRONG)
    changed = check()
    certificate.write_text(certificate.read_text().replace("add two numbers", "add 2 numbers"))
    tampered = check()

    assert good.stdout == f"good: proven by {signing_key(state_dir).public}\n"
    assert changed.stderr == "changed: calc.py\n"
    assert "InvalidSignature" in tampered.stderr


def test_a_certificate_of_another_key_is_refused_where_one_is_named(
    home: dict[str, str], state_dir: Path, tmp_path: Path
) -> None:
    certificate = certify(state_dir, tmp_path / "work", AFTER)
    key = signing_key(state_dir).public

    mine = assay(home, "verify", certificate, "--key", key.upper(), "--no-run")
    other = assay(home, "verify", certificate, "--key", "00" * 32, "--no-run")

    assert (mine.returncode, other.returncode) == (ExitCode.ACCEPTED, ExitCode.TAMPERING)
    assert "was not run again" in mine.stdout
    assert "signed by another key" in other.stdout


def test_what_is_no_certificate_is_a_wrong_request(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{}")

    for words in ((tmp_path / "c.json",), (tmp_path / "nothing.json",), ()):
        shown = assay(home, "verify", *words)

        assert shown.returncode == ExitCode.USAGE
        assert shown.stderr.startswith("error: ")


def test_a_certificate_away_from_its_files_needs_their_folder(
    home: dict[str, str], state_dir: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved.json"
    certify(state_dir, tmp_path / "work", AFTER).rename(moved)

    alone = assay(home, "verify", moved, "--no-run")
    told = assay(home, "verify", moved, "--no-run", "--workspace", tmp_path / "work")

    assert alone.returncode == ExitCode.USAGE
    assert "--workspace" in alone.stderr
    assert told.returncode == ExitCode.ACCEPTED
