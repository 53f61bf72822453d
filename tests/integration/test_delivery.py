"""Accepted files are written later and taken back: each file old or new at every moment."""

import stat
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from assay.contracts.errors import UsageError
from assay.contracts.events import RunEvent, Verified
from assay.contracts.workspace import Tree
from assay.runs.delivery import Delivery, apply_run, undo_run
from assay.settings.load import Settings
from assay.storage.apply_changes import write_changes
from assay.storage.read_workspace import STAGED, read_workspace
from assay.storage.run_store import RunStore
from tests.support.killed import is_killed, writes_a_file
from tests.support.loops import run_apart
from tests.support.stored_runs import a_tree, store_a_run
from tests.support.undertakings import tell

BEFORE = a_tree(same="1", edited="old\n", gone="gone\n", deep__gone="gone too\n")
AFTER = a_tree(same="1", edited="new\n", added="added\n", new__er__added="added too")


def agree(folder: str) -> None:
    assert Path(folder).is_dir()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace with a run that was accepted and not written."""
    prepare(tmp_path)
    return tmp_path / "work"


def prepare(parent: Path, *, accepted: bool = True) -> None:
    (parent / "work").mkdir(parents=True)
    write_changes(parent / "work", Tree(), BEFORE)
    (parent / "work" / "edited").chmod(0o600)
    (parent / "work" / "gone").chmod(0o640)
    store = partial(store_a_run, accepted=accepted)
    run_apart(store, parent / "state", parent / "work", BEFORE, AFTER)


def modes(folder: Path) -> dict[str, int]:
    return {name: stat.S_IMODE((folder / name).stat().st_mode) for name in ("edited", "gone")}


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


async def test_a_result_is_written_later_and_taken_back_exactly(
    folder: Path, settings: Settings
) -> None:
    before = names(folder)

    applied = await apply_run("", settings, agree)
    certificate = folder / ".assay" / f"{applied.run}.certificate.json"
    assert read_workspace(folder) == AFTER
    assert certificate.is_file()
    assert ".assay/.gitignore" in names(folder)

    undone = await undo_run(applied.run[:-1], settings, agree)
    assert read_workspace(folder) == BEFORE
    assert names(folder) == before
    assert modes(folder) == {"edited": 0o600, "gone": 0o640}
    assert {one.path for one in undone.changes} == {one.path for one in applied.changes}

    await apply_run("", settings, agree)
    assert read_workspace(folder) == AFTER
    assert certificate.is_file()


async def test_a_file_that_was_changed_since_is_named_and_nothing_is_written(
    folder: Path, settings: Settings
) -> None:
    (folder / "edited").write_text("by hand")

    with pytest.raises(UsageError, match="edited: differs") as refused:
        await apply_run("", settings, agree)

    assert "assay show" in refused.value.hint
    assert not (folder / "added").exists()


async def test_a_file_that_was_changed_after_the_run_is_not_taken_back(
    folder: Path, settings: Settings
) -> None:
    await apply_run("", settings, agree)
    (folder / "added").write_text("by hand")

    with pytest.raises(UsageError, match="added: differs") as refused:
        await undo_run("", settings, agree)

    assert "assay diff" in refused.value.hint
    assert (folder / "edited").read_text() == "new\n"


@pytest.mark.usefixtures("folder")
async def test_what_was_never_written_cannot_be_taken_back(settings: Settings) -> None:
    with pytest.raises(UsageError, match="no files of the run") as refused:
        await undo_run("", settings, agree)
    assert "assay apply" in refused.value.hint

    await apply_run("", settings, agree)
    await undo_run("", settings, agree)
    with pytest.raises(UsageError, match="no files of the run"):
        await undo_run("", settings, agree)


def test_a_result_that_was_not_accepted_is_never_written(
    tmp_path: Path, settings: Settings
) -> None:
    prepare(tmp_path, accepted=False)

    with pytest.raises(UsageError, match="was not accepted"):
        run_apart(apply_run, "", settings, agree)

    assert read_workspace(tmp_path / "work") == BEFORE


async def test_a_link_in_place_of_the_certificates_is_refused_before_any_write(
    folder: Path, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (folder / ".assay").symlink_to(tmp_path / "outside")

    with pytest.raises(UsageError, match="is a link or a file"):
        await apply_run("", settings, agree)

    assert read_workspace(folder).files == BEFORE.files
    assert not names(tmp_path / "outside")


def check_old_or_new(folder: Path) -> None:
    for path in BEFORE.files.keys() | AFTER.files.keys():
        file = folder / path
        content = file.read_bytes() if file.is_file() else None
        states = (BEFORE.files.get(path), AFTER.files.get(path))
        assert content in [None if state is None else state.content for state in states], path


def act(work: Callable[..., Awaitable[Delivery]], parent: Path) -> Delivery:
    return run_apart(work, "", Settings(state_dir=parent / "state"), agree)


async def test_a_result_that_could_not_be_written_stays_accepted_and_is_applied_later(
    tmp_path: Path,
) -> None:
    script = ["1. write", "FILE: answer.txt\n```\n42\n```\nDONE"]
    answer = tmp_path / "workspace" / "answer.txt"

    def interfere(event: RunEvent) -> None:
        if isinstance(event, Verified):
            answer.write_text("mine")

    with pytest.raises(UsageError, match=r"answer\.txt: is there already") as refused:
        await tell(tmp_path, script, checks=("grep -rq 42 .",), listener=interfere)
    assert "assay apply" in refused.value.hint
    assert answer.read_text() == "mine"

    answer.unlink()
    await apply_run("", Settings(state_dir=tmp_path / "state"), agree)
    assert answer.read_text() == "42\n"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("first", "second", "end"), [(apply_run, apply_run, AFTER), (apply_run, undo_run, BEFORE)]
)
def test_a_write_that_is_killed_at_any_moment_is_finished_or_taken_back(
    tmp_path: Path,
    first: Callable[..., Awaitable[Delivery]],
    second: Callable[..., Awaitable[Delivery]],
    end: Tree,
) -> None:
    number, killed = 1, True
    while killed:
        parent = tmp_path / str(number)
        prepare(parent)
        killed = is_killed(number, lambda: act(first, parent), writes_a_file)  # noqa: B023 - called at once
        check_old_or_new(parent / "work")
        begun = (RunStore(parent / "state").open().folder / "kept.jsonl").read_text()
        if begun or second is apply_run:
            act(second, parent)
            check_end(parent / "work", end)
        number += 1
    assert number > 12


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_undo_that_is_killed_at_any_moment_is_finished_by_a_second_one(tmp_path: Path) -> None:
    number, killed = 1, True
    while killed:
        parent = tmp_path / str(number)
        prepare(parent)
        act(apply_run, parent)
        killed = is_killed(number, lambda: act(undo_run, parent), writes_a_file)  # noqa: B023 - called at once
        check_old_or_new(parent / "work")
        if killed and not is_undone(parent):
            act(undo_run, parent)
        check_end(parent / "work", BEFORE)
        assert modes(parent / "work") == {"edited": 0o600, "gone": 0o640}
        number += 1
    assert number > 12


def is_undone(parent: Path) -> bool:
    kept = (RunStore(parent / "state").open().folder / "kept.jsonl").read_text()
    return '"state": "undone"' in kept


def check_end(folder: Path, end: Tree) -> None:
    assert read_workspace(folder) == end
    found = names(folder)
    assert not [name for name in found if STAGED in name]
    assert (".assay" in found) == (end is AFTER)
