import json
import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from assay.contracts.errors import UsageError
from assay.sandbox.native.host import registry
from assay.sandbox.native.host.registry import EngineRecord, ProcessMark
from assay.sandbox.native.kernel import cgroups
from tests.support.children import a_child, a_zombie, have_a_child
from tests.support.requirements import require

NOBODY = 65534
GONE = ProcessMark(pid=os.getpid(), started=1)
"""A process with a number that somebody else has now."""


def a_record(
    *,
    engine: str = "1-abc",
    owner: ProcessMark = GONE,
    launcher: ProcessMark | None = None,
    since: float = 100.0,
    remove: tuple[str, ...] = (),
) -> EngineRecord:
    return EngineRecord(engine=engine, owner=owner, launcher=launcher, since=since, remove=remove)


@pytest.fixture
def runtime_dir(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


def test_the_runtime_folder_is_made_for_its_owner_alone(runtime_dir: Path) -> None:
    folder = registry.enter(runtime_dir, a_record())

    assert folder == runtime_dir / "1-abc"
    assert stat.S_IMODE(runtime_dir.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o722, 0o770, 0o777, 0o1777])
def test_a_runtime_folder_that_others_may_write_to_is_refused(runtime_dir: Path, mode: int) -> None:
    runtime_dir.mkdir()
    runtime_dir.chmod(mode)

    with pytest.raises(UsageError, match="not safe to use") as caught:
        registry.enter(runtime_dir, a_record())

    assert "ASSAY_RUNTIME_DIR" in caught.value.hint
    assert list(runtime_dir.iterdir()) == []


def test_a_runtime_folder_of_somebody_else_is_refused(runtime_dir: Path) -> None:
    require("root", available=os.geteuid() == 0, why="only root gives folders away")
    runtime_dir.mkdir(mode=0o700)
    os.chown(runtime_dir, NOBODY, NOBODY)

    with pytest.raises(UsageError, match="not safe to use"):
        registry.enter(runtime_dir, a_record())


def test_a_link_in_place_of_the_runtime_folder_is_refused(runtime_dir: Path) -> None:
    (runtime_dir.parent / "elsewhere").mkdir(mode=0o700)
    runtime_dir.symlink_to("elsewhere")

    with pytest.raises(UsageError, match="not safe to use"):
        registry.enter(runtime_dir, a_record())


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_runtime_folder_that_cannot_be_made_is_a_wrong_setting(
    runtime_dir: Path, below: str
) -> None:
    runtime_dir.write_text("a file")

    with pytest.raises(UsageError) as caught:
        registry.enter(runtime_dir / below, a_record())

    assert "ASSAY_RUNTIME_DIR" in caught.value.hint


def test_a_record_is_read_as_it_was_written(runtime_dir: Path) -> None:
    mark = registry.mark(os.getpid())
    record = a_record(owner=mark, launcher=mark, since=12.5, remove=("/sys/fs/cgroup/x", "/y"))

    folder = registry.enter(runtime_dir, record)

    assert registry.read_records(runtime_dir) == (record,)
    assert [path.name for path in folder.iterdir()] == ["engine.json"]


def test_the_oldest_engine_comes_first(runtime_dir: Path) -> None:
    for engine, since in (("b", 2.0), ("c", 3.0), ("a", 1.0)):
        registry.enter(runtime_dir, a_record(engine=engine, since=since))

    assert [record.engine for record in registry.read_records(runtime_dir)] == ["a", "b", "c"]


def test_where_no_engine_ever_ran_there_are_no_records(runtime_dir: Path) -> None:
    assert registry.read_records(runtime_dir) == ()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '"text"', '{"owner": 1, "launcher": null, "since": 0}'],
)
def test_a_folder_that_is_not_named_like_ours_and_has_no_readable_record_is_left_out(
    runtime_dir: Path, text: str
) -> None:
    registry.enter(runtime_dir, a_record(engine="good"))
    (registry.enter(runtime_dir, a_record(engine="bad")) / "engine.json").write_text(text)

    assert [record.engine for record in registry.read_records(runtime_dir)] == ["good"]


def test_a_record_whose_paths_are_no_list_is_not_believed(runtime_dir: Path) -> None:
    folder = registry.enter(runtime_dir, a_record())
    fields = json.loads((folder / "engine.json").read_text())
    # Taken letter by letter, this would have `clean` remove the root directory.
    (folder / "engine.json").write_text(json.dumps(fields | {"remove": "/nonexistent"}))

    assert [record.remove for record in registry.read_records(runtime_dir)] == [(str(folder),)]


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_record_that_somebody_else_may_have_written_is_not_believed(
    runtime_dir: Path, mode: int
) -> None:
    # `/tmp/assay-0` can be made by anyone who comes before root does.
    registry.enter(runtime_dir, a_record(remove=("/somewhere/precious",)))
    runtime_dir.chmod(mode)

    with suppress(UsageError):
        assert registry.read_records(runtime_dir) == ()


def test_a_record_in_a_runtime_folder_of_somebody_else_is_not_believed(runtime_dir: Path) -> None:
    require("root", available=os.geteuid() == 0, why="only root gives folders away")
    registry.enter(runtime_dir, a_record(remove=("/somewhere/precious",)))
    os.chown(runtime_dir, NOBODY, NOBODY)

    with suppress(UsageError):
        assert registry.read_records(runtime_dir) == ()


def test_a_running_process_is_alive_and_a_later_one_with_its_number_is_not() -> None:
    mark = registry.mark(os.getpid())

    assert mark.alive
    assert not replace(mark, started=mark.started + 1).alive


def test_a_process_that_only_waits_to_be_buried_is_not_alive() -> None:
    zombie = a_zombie()

    try:
        assert registry.start_time(zombie) is None
    finally:
        os.waitpid(zombie, 0)


def test_an_engine_is_orphaned_once_its_owner_is_gone() -> None:
    with a_child() as child:
        record = a_record(owner=registry.mark(child))
        assert not record.orphaned

    assert record.orphaned


def test_an_engine_has_as_many_processes_as_its_launcher_has_descendants_and_itself() -> None:
    with a_child(have_a_child) as launcher:
        record = replace(a_record(), launcher=registry.mark(launcher))

        assert record.processes() == 2

    assert record.processes() == 0


def test_an_engine_without_a_launcher_has_no_processes() -> None:
    assert a_record().processes() == 0


def test_cleaning_up_ends_the_launcher_and_removes_what_was_written_down(
    runtime_dir: Path, tmp_path: Path
) -> None:
    with a_child() as launcher:
        left = tmp_path / "left"
        left.mkdir()
        record = replace(a_record(remove=(str(left),)), launcher=registry.mark(launcher))
        registry.enter(runtime_dir, record)

        registry.clean(runtime_dir, record)

        assert record.launcher is not None
        assert not record.launcher.alive
        assert not left.exists()
        assert list(runtime_dir.iterdir()) == []


def test_cleaning_up_spares_a_process_that_has_the_launchers_number_by_chance(
    runtime_dir: Path,
) -> None:
    with a_child() as bystander:
        mark = registry.mark(bystander)
        record = a_record(launcher=replace(mark, started=mark.started - 1))
        registry.enter(runtime_dir, record)

        registry.clean(runtime_dir, record)

        assert mark.alive


def test_cleaning_up_one_engine_leaves_the_others(runtime_dir: Path) -> None:
    one, other = a_record(engine="one"), a_record(engine="other")
    registry.enter(runtime_dir, one)
    registry.enter(runtime_dir, other)

    registry.clean(runtime_dir, one)

    assert registry.read_records(runtime_dir) == (other,)


def without_its_record(runtime_dir: Path, *, pid: int) -> Path:
    folder = registry.enter(runtime_dir, a_record(engine=f"{pid}-0123abcd"))
    (folder / "boxes").mkdir()
    (folder / "engine.json").unlink()
    return folder


def a_number_nobody_has() -> int:
    with a_child() as child:
        pass
    return child


def test_what_is_left_of_an_engine_without_its_record_is_listed_and_cleaned_up(
    runtime_dir: Path,
) -> None:
    folder = without_its_record(runtime_dir, pid=a_number_nobody_has())

    (record,) = registry.read_records(runtime_dir)
    registry.clean(runtime_dir, record)

    assert record.engine == folder.name
    assert record.orphaned
    assert list(runtime_dir.iterdir()) == []


def test_a_lost_record_does_not_make_an_orphan_of_an_engine_whose_owner_lives(
    runtime_dir: Path,
) -> None:
    # A tidy machine removes what has not been touched for days; the engine may be in use.
    without_its_record(runtime_dir, pid=os.getpid())

    (record,) = registry.read_records(runtime_dir)

    assert not record.orphaned


def test_a_record_cut_short_is_replaced_by_what_the_folder_says(runtime_dir: Path) -> None:
    folder = without_its_record(runtime_dir, pid=a_number_nobody_has())
    (folder / "engine.json").write_text('{"engine": "1-')

    (record,) = registry.read_records(runtime_dir)

    assert record.orphaned
    assert record.remove == (str(folder),)


def test_an_engine_that_is_just_being_entered_is_neither_listed_nor_removed(
    runtime_dir: Path,
) -> None:
    own = registry.mark(os.getpid())
    runtime_dir.mkdir(mode=0o700)
    (runtime_dir / f".{own.pid}-0123abcd.{own.started}").mkdir()

    assert registry.read_records(runtime_dir) == ()


def test_an_engine_whose_owner_died_entering_it_is_cleaned_up(runtime_dir: Path) -> None:
    own = registry.mark(os.getpid())
    runtime_dir.mkdir(mode=0o700)
    (runtime_dir / f".{own.pid}-0123abcd.{own.started - 1}").mkdir()

    (record,) = registry.read_records(runtime_dir)
    registry.clean(runtime_dir, record)

    assert record.orphaned
    assert list(runtime_dir.iterdir()) == []


@pytest.mark.parametrize("name", ["notes", "1-", "-abc", "1-abc-2", ".1-abc", "1-xyz", "a link"])
def test_what_is_not_named_like_an_engine_is_left_alone(runtime_dir: Path, name: str) -> None:
    runtime_dir.mkdir(mode=0o700)
    (runtime_dir / name).mkdir()
    (runtime_dir / "2-abc").symlink_to(name)
    (runtime_dir / "3-abc").write_text("a file")

    assert registry.read_records(runtime_dir) == ()


def test_groups_that_were_made_and_not_yet_written_down_are_removed_too(runtime_dir: Path) -> None:
    record = a_record(engine=f"{os.getpid()}-0123abcd")
    groups = cgroups.open_groups(record.engine)
    require("cgroup", available=groups.enforcing, why="no control group can be made here")
    registry.enter(runtime_dir, record)

    registry.clean(runtime_dir, record)

    assert [folder for folder in groups.folders if Path(folder).exists()] == []
