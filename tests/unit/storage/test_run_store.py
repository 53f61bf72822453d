"""Runs are found by their names, listed with what became of them, and removed when they are old."""

import json
import os
import stat
from pathlib import Path

import pytest

from assay.contracts.errors import JournalError, UsageError
from assay.contracts.events import AttemptStarted, BudgetUsed, RunEnded, RunResumed
from assay.contracts.goal import RunRequest, RunResult, Status
from assay.contracts.messages import Usage
from assay.contracts.verdict import TestMatrix
from assay.storage.folder_store import new_name
from assay.storage.journal import DiskJournal
from assay.storage.run_store import Run, RunStore

REQUEST = RunRequest(
    goal="add two numbers", workspace=Path("src"), checks=("pytest -q",), budget_calls=3
)
SPENT = Usage(input_tokens=10, output_tokens=5, calls=2, cost_usd=0.25)


def outcome(run: Run, status: Status, attempts: int = 3) -> RunResult:
    return RunResult(
        run=run.id,
        status=status,
        grade=None,
        reason="because",
        attempts=attempts,
        verdict=None,
        test_matrix=TestMatrix(),
        findings=(),
        changes=(),
        tree="0" * 64,
        usage=SPENT,
        wall_s=1.0,
    )


def aged(run: Run, days: float) -> Run:
    """Make a run look as if it was begun so long before the others."""
    file = run.folder / "run.json"
    then = file.stat().st_mtime - days * 86400
    os.utime(file, (then, then))
    return run


def test_a_run_is_read_back_as_it_was_asked_for(tmp_path: Path) -> None:
    created = RunStore(tmp_path, clock=lambda: 1234.5).create(REQUEST)

    assert RunStore(tmp_path).open(created.id) == created
    assert created.request == REQUEST
    assert created.created_at == 1234.5


def test_nobody_else_may_read_what_was_asked_for(tmp_path: Path) -> None:
    run = RunStore(tmp_path / "state").create(REQUEST)

    folders = (tmp_path / "state", run.folder.parent, run.folder)
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    assert stat.S_IMODE((run.folder / "run.json").stat().st_mode) == 0o600


def test_a_run_is_found_by_how_its_name_begins(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = store.create(REQUEST)

    assert store.open(run.id[:-2]).id == run.id
    assert store.open(run.id[:3].upper()).id == run.id


def test_without_a_name_the_newest_run_is_meant(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    aged(store.create(REQUEST), days=1)
    newest = store.create(REQUEST)
    aged(store.create(REQUEST), days=2)

    assert store.open().id == newest.id


def test_a_beginning_that_fits_several_runs_names_them(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for name in ("calm-owl-0001", "calm-owl-0002"):
        store.create(REQUEST).folder.rename(store.folder / name)

    with pytest.raises(UsageError, match="2 runs") as refusal:
        store.open("calm")

    assert "calm-owl-0001, calm-owl-0002" in refusal.value.hint
    assert store.open("calm-owl-0001").id == "calm-owl-0001"


@pytest.mark.parametrize("name", ["nosuch", "../../etc", "/", ".", "..", "\0"])
def test_what_is_no_run_is_refused(tmp_path: Path, name: str) -> None:
    store = RunStore(tmp_path)
    store.create(REQUEST)

    with pytest.raises(UsageError, match="there is no run"):
        store.open(name)


def test_where_nothing_was_run_that_is_said(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "nothing here")

    assert store.list() == ()
    with pytest.raises(UsageError, match="no runs yet"):
        store.open()


async def test_the_list_says_what_became_of_each_run_the_newest_first(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    endings = [Status.ACCEPTED, Status.TAMPERED, Status.INTERRUPTED]
    for age, status in enumerate(endings):
        run = aged(store.create(REQUEST), days=age)
        async with DiskJournal(run.folder) as journal:
            journal.emit(AttemptStarted(attempt=1, action="sample"))
            journal.emit(RunEnded(outcome=outcome(run, status)))

    found = store.list()

    assert [one.status for one in found] == endings
    assert [one.resumable for one in found] == [False, False, True]
    assert {(one.goal, one.attempts, one.usage) for one in found} == {("add two numbers", 3, SPENT)}
    assert store.list(limit=2) == found[:2]


async def test_a_run_without_an_end_is_running_while_somebody_works_on_it(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = store.create(REQUEST)
    async with DiskJournal(run.folder) as journal:
        journal.emit(AttemptStarted(attempt=1, action="sample"))
        journal.emit(BudgetUsed(usage=SPENT, attempts=1, wall_s=1.0, share=0.5))
        journal.emit(AttemptStarted(attempt=2, action="repair"))
        during = store.summary(run.id)
    after = store.summary(run.id)

    assert (during.status, after.status) == ("running", "stopped")
    assert (after.attempts, after.usage, after.resumable) == (2, SPENT, True)


async def test_a_run_that_was_taken_up_again_has_not_ended(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = store.create(REQUEST)
    async with DiskJournal(run.folder) as journal:
        journal.emit(RunEnded(outcome=outcome(run, Status.INTERRUPTED)))
        journal.emit(RunResumed(run=run.id))

    assert store.summary(run.id).status == "stopped"


async def test_a_list_goes_on_past_runs_that_cannot_be_read(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    whole = store.create(REQUEST)
    (aged(store.create(REQUEST), days=1).folder / "run.json").write_text("{")
    cut = aged(store.create(REQUEST), days=2)
    async with DiskJournal(cut.folder) as journal:
        journal.emit(RunEnded(outcome=outcome(cut, Status.ACCEPTED)))
    (cut.folder / "events.jsonl").write_text("{\n")
    (store.folder / "empty").mkdir()
    (store.folder / "a file").write_text("")

    found = {one.id: one for one in store.list()}

    assert found[whole.id].status == "stopped"
    others = [one for one in found.values() if one.id != whole.id]
    assert [one.status for one in others] == ["damaged"] * 3
    assert all(one.trouble for one in others)


async def test_the_last_event_is_found_however_long_the_lines_are(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for size in (1, 1 << 16, (1 << 16) + 1, 300_000):
        run = store.create(REQUEST)
        async with DiskJournal(run.folder) as journal:
            journal.emit(RunResumed(run="x" * size))
            journal.emit(RunEnded(outcome=outcome(run, Status.ACCEPTED, attempts=size)))
        with (run.folder / "events.jsonl").open("a") as file:
            file.write('{"torn')

        assert (store.summary(run.id).status, store.summary(run.id).attempts) == ("accepted", size)


async def test_old_runs_are_removed_and_running_ones_are_not(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    young = store.create(REQUEST)
    old, busy = (aged(store.create(REQUEST), days=40) for _ in range(2))
    async with DiskJournal(busy.folder):
        removed = store.delete_older_than(30 * 86400)
        with pytest.raises(UsageError, match="a process works on"):
            store.delete(busy.id)

    assert removed == (old.id,)
    assert {one.id for one in store.list()} == {young.id, busy.id}
    assert not old.folder.exists()


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(JournalError, match="no run can be written"):
        RunStore(tmp_path / "file").create(REQUEST)


def test_a_request_of_a_later_version_is_read(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = store.create(REQUEST)
    file = run.folder / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "colour": "green"}))

    assert store.open(run.id) == run


def test_names_are_short_and_can_be_typed() -> None:
    names = {new_name() for _ in range(500)}

    assert len(names) > 490
    assert all(len(name) <= 24 and name.replace("-", "").isalnum() for name in names)
