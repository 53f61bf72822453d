"""`assay bench` from outside: a whole run, one that is killed, reports, and wrong words."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from assay.contracts.errors import ExitCode
from tests.support.benches import results_in
from tests.support.eventually import eventually
from tests.support.exercises import polyglot_clone, simple_suite
from tests.support.loops import run_apart

EXERCISES = 4


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "assay", "bench", *words]


def surroundings(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {
        **kept,
        "HOME": str(folder),
        "ASSAY_SANDBOX__POOL_SIZE": "0",
        "ASSAY_RUNTIME_DIR": str(folder / "runtime"),
        "NO_COLOR": "1",
    }


def bench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        cwd=folder,
        env=surroundings(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


def facts_in(folder: Path) -> dict[str, Any]:
    """Return what a report says, without times and without what the folder is called."""
    told = json.loads((folder / "report.json").read_text())
    for name in ("dirname", "date", "seconds_per_case", "command", "model"):
        del told["leaderboard"][name]
    del told["folder"]
    return told


def has_begun(results: Path) -> bool:
    return results.exists() and results.read_bytes().count(b"\n") >= 1


@pytest.mark.slow
@pytest.mark.parametrize("track", ["blind", "agentic"])
def test_a_run_killed_in_the_middle_ends_as_one_that_was_not(tmp_path: Path, track: str) -> None:
    suite = simple_suite(tmp_path / "suite", EXERCISES, wrong=(0, 2))
    usual = ("run", str(suite), "--no-validate", "--track", track, "--attempts", "1", "--jobs", "2")
    first = bench(tmp_path, *usual, "--model", "oracle", "--out", "first", "--json")
    assert first.returncode == ExitCode.ACCEPTED, first.stderr
    recorded = (*usual, "--model", "recorded:first", "--json")
    whole = bench(tmp_path, *recorded, "--out", "whole")
    (tmp_path / "whole" / "report.json").write_text(whole.stdout)
    process = subprocess.Popen(
        command(*recorded, "--out", "killed"),
        cwd=tmp_path,
        env=surroundings(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    results = tmp_path / "killed" / "results.jsonl"
    assert run_apart(partial(eventually, partial(has_begun, results), within_s=60))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 1 <= results.read_bytes().count(b"\n") < EXERCISES
    resumed = bench(tmp_path, *recorded, "--out", "killed")
    (tmp_path / "killed" / "report.json").write_text(resumed.stdout)
    assert results_in(tmp_path / "killed") == results_in(tmp_path / "whole")
    assert facts_in(tmp_path / "killed") == facts_in(tmp_path / "whole")
    assert json.loads(resumed.stdout)["solved"] == EXERCISES - 2
    again = bench(tmp_path, "compare", "whole", "killed", "--json")
    assert json.loads(again.stdout)["gained"] == json.loads(again.stdout)["lost"] == []


@pytest.mark.slow
def test_a_run_is_replayed_and_reported(tmp_path: Path) -> None:
    suite = simple_suite(tmp_path / "suite", 2, wrong=(1,))
    done = bench(tmp_path, "run", str(suite), "--model", "oracle", "--out", "one")
    assert done.returncode == ExitCode.ACCEPTED, done.stderr
    assert "1/2" in done.stdout
    assert "its tests reject the reference" in done.stderr
    assert (tmp_path / "one" / "report.html").read_text().startswith("<!DOCTYPE html>")
    replayed = bench(tmp_path, "replay", "one", "--out", "two")
    assert replayed.returncode == ExitCode.ACCEPTED, replayed.stderr
    told = bench(tmp_path, "report", "one", "--to", "elsewhere")
    assert told.returncode == ExitCode.ACCEPTED
    assert (tmp_path / "elsewhere" / "report.yaml").is_file()


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    suite = simple_suite(tmp_path / "suite", 3)
    process = subprocess.Popen(
        command("run", str(suite), "--model", "stub", "--no-validate", "--out", "out"),
        cwd=tmp_path,
        env=surroundings(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    results = tmp_path / "out" / "results.jsonl"
    assert run_apart(partial(eventually, partial(has_begun, results), within_s=60))
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "the same command continues" in told


def test_exercises_are_listed_with_why_they_cannot_run(tmp_path: Path) -> None:
    clone = polyglot_clone(tmp_path / "clone")
    listed = bench(tmp_path, "list", "polyglot", "--dataset", str(clone))
    assert "python/adding\n" in listed.stdout
    # Nothing was fetched into this home.
    assert "java/adding  (not run here: missing: " in listed.stdout
