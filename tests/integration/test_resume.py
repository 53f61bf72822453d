"""A run that is killed with signal 9, wherever it is, goes on as if nothing had happened."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from assay.contracts.events import Passing, RunEvent
from assay.contracts.goal import RunLimits, RunRequest, RunResult
from assay.runs.request import RunCallbacks
from assay.runs.runner import resume_run, start_run
from assay.settings.load import SandboxSettings, Settings
from assay.storage.journal import KEPT
from assay.storage.run_store import RunStore
from tests.support.eventually import eventually
from tests.support.leftovers import records_in
from tests.support.loops import run_apart

BAD = "FILE: answer.txt\n```\n41\n```\nRUN: echo looking; ls"
GOOD = "EDIT: answer.txt\n<<<<<<< SEARCH\n41\n=======\n42\n>>>>>>> REPLACE\nDONE"
SCRIPT = ["1. write answer.txt", BAD, "DONE", "RUN: cat answer.txt > seen.txt", GOOD]
"""A plan, an attempt in two replies that fails, and a repair in two that works."""


def settings_in(folder: Path) -> Settings:
    # Nothing is preloaded: engines start dozens of times here, and run only small programs.
    sandbox = SandboxSettings(preload=(), pool_size=0, runtime_dir=folder / "runtime")
    return Settings(sandbox=sandbox, state_dir=folder / "state")


def request_in(folder: Path) -> RunRequest:
    script = folder / "script.jsonl"
    facts = {"facts": {"tool_calls": False}}
    lines = [facts, *({"text": text} for text in SCRIPT)]
    script.write_text("\n".join(json.dumps(line) for line in lines))
    workspace = folder / "workspace"
    workspace.mkdir()
    return RunRequest(
        goal="Write the answer",
        workspace=workspace,
        checks=("grep -q 42 answer.txt",),
        model=f"scripted:{script}",
        limits=RunLimits(attempts=3),
        memory="off",
    )


class Executioner:
    """Kills this process with the event of a number."""

    def __init__(self, number: int, *, let_pass: tuple[type[RunEvent], ...] = ()) -> None:
        self.left = number
        self.let_pass = let_pass

    def __call__(self, event: RunEvent) -> None:
        self.left -= not isinstance(event, self.let_pass)
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def died(work: Callable[[], object]) -> bool:
    """Do something in a child; whether signal 9 ended it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told by the exit code
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def calls_paid(folder: Path) -> int:
    store = RunStore(folder / "state")
    lines = (store.open().folder / KEPT).read_text().splitlines()
    return sum(json.loads(line)["key"].startswith("reply:") for line in lines)


def finished(folder: Path) -> RunResult:
    return run_apart(resume_run, "", settings_in(folder), RunCallbacks())


def check_everything(folder: Path, outcome: RunResult) -> None:
    assert outcome.accepted
    assert outcome.attempts == 2
    assert (folder / "workspace" / "answer.txt").read_text() == "42\n"
    assert (folder / "workspace" / "seen.txt").read_text() == "41\n"
    assert Path(outcome.certificate).is_file()
    assert calls_paid(folder) == len(SCRIPT)
    assert outcome.usage.calls == len(SCRIPT)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_that_is_killed_at_any_event_ends_as_it_would_have(tmp_path: Path) -> None:
    number, killed = 1, True
    while killed:
        folder = tmp_path / str(number)
        folder.mkdir()
        request, settings = request_in(folder), settings_in(folder)
        callbacks = RunCallbacks(listeners=(Executioner(number),))
        killed = died(
            lambda: run_apart(start_run, request, settings, callbacks)  # noqa: B023 - called at once
        )
        if killed:
            check_everything(folder, finished(folder))
            assert run_apart(eventually, lambda: not records_in(folder / "runtime"))  # noqa: B023 - as above
        number += 1
    # So many events there were, and at each of them it was killed once.
    assert number > 20


@pytest.mark.timeout(400)
def test_a_run_that_is_killed_again_and_again_still_ends(tmp_path: Path) -> None:
    request, settings = request_in(tmp_path), settings_in(tmp_path)
    rounds = 0
    # An answer that is killed in the middle has to be asked for again, for ever if it always is.
    deadly = Executioner(4, let_pass=get_args(Passing))
    assert died(lambda: run_apart(start_run, request, settings, RunCallbacks(listeners=(deadly,))))
    while died(lambda: run_apart(resume_run, "", settings, RunCallbacks(listeners=(deadly,)))):
        rounds += 1
        assert rounds < 40

    check_everything(tmp_path, finished(tmp_path))
    assert rounds > 1
