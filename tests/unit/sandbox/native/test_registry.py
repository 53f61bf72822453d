import json
import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from assay.contracts.errors import UsageError
from assay.sandbox.native import registry
from assay.sandbox.native.registry import EngineRecord, ProcessMark
from tests.support.children import a_child, a_zombie, have_a_child
from tests.support.requirements import require

NOBODY = 65534
GONE = ProcessMark(pid=os.getpid(), started=1)
"""A process with a number that somebody else has now."""


def a_record(
    *,
    engine: str = "1-abc",
    owner: ProcessMark = GONE,
    warden: ProcessMark | None = None,
    since: float = 100.0,
    remove: tuple[str, ...] = (),
) -> EngineRecord:
    return EngineRecord(engine=engine, owner=owner, warden=warden, since=since, remove=remove)


def written(runtime_dir: Path, record: EngineRecord) -> Path:
    folder = registry.open_folder(runtime_dir, record.engine)
    registry.write_record(folder, record)
    return folder


@pytest.fixture
def runtime_dir(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


def test_the_runtime_folder_is_made_for_its_owner_alone(runtime_dir: Path) -> None:
    folder = registry.open_folder(runtime_dir, "1-abc")

    assert folder == runtime_dir / "1-abc"
    assert stat.S_IMODE(runtime_dir.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o722, 0o770, 0o777, 0o1777])
def test_a_runtime_folder_that_others_may_write_to_is_refused(runtime_dir: Path, mode: int) -> None:
    runtime_dir.mkdir()
    runtime_dir.chmod(mode)

    with pytest.raises(UsageError, match="not safe to use") as caught:
        registry.open_folder(runtime_dir, "1-abc")

    assert "ASSAY_RUNTIME_DIR" in caught.value.hint
    assert list(runtime_dir.iterdir()) == []


def test_a_runtime_folder_of_somebody_else_is_refused(runtime_dir: Path) -> None:
    require("root", available=os.geteuid() == 0, why="only root gives folders away")
    runtime_dir.mkdir(mode=0o700)
    os.chown(runtime_dir, NOBODY, NOBODY)

    with pytest.raises(UsageError, match="not safe to use"):
        registry.open_folder(runtime_dir, "1-abc")


def test_a_link_in_place_of_the_runtime_folder_is_refused(runtime_dir: Path) -> None:
    (runtime_dir.parent / "elsewhere").mkdir(mode=0o700)
    runtime_dir.symlink_to("elsewhere")

    with pytest.raises(UsageError, match="not safe to use"):
        registry.open_folder(runtime_dir, "1-abc")


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_runtime_folder_that_cannot_be_made_is_a_wrong_setting(
    runtime_dir: Path, below: str
) -> None:
    runtime_dir.write_text("a file")

    with pytest.raises(UsageError) as caught:
        registry.open_folder(runtime_dir / below, "1-abc")

    assert "ASSAY_RUNTIME_DIR" in caught.value.hint


def test_a_record_is_read_as_it_was_written(runtime_dir: Path) -> None:
    mark = registry.mark(os.getpid())
    record = a_record(owner=mark, warden=mark, since=12.5, remove=("/sys/fs/cgroup/x", "/y"))

    folder = written(runtime_dir, record)

    assert registry.read_records(runtime_dir) == (record,)
    assert [path.name for path in folder.iterdir()] == ["engine.json"]


def test_the_oldest_engine_comes_first(runtime_dir: Path) -> None:
    for engine, since in (("b", 2.0), ("c", 3.0), ("a", 1.0)):
        written(runtime_dir, a_record(engine=engine, since=since))

    assert [record.engine for record in registry.read_records(runtime_dir)] == ["a", "b", "c"]


def test_where_no_engine_ever_ran_there_are_no_records(runtime_dir: Path) -> None:
    assert registry.read_records(runtime_dir) == ()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '"text"', '{"owner": 1, "warden": null, "since": 0}'],
)
def test_a_record_that_cannot_be_read_is_left_out(runtime_dir: Path, text: str) -> None:
    written(runtime_dir, a_record(engine="good"))
    (registry.open_folder(runtime_dir, "bad") / "engine.json").write_text(text)

    assert [record.engine for record in registry.read_records(runtime_dir)] == ["good"]


def test_a_record_whose_paths_are_no_list_is_left_out(runtime_dir: Path) -> None:
    folder = written(runtime_dir, a_record())
    fields = json.loads((folder / "engine.json").read_text())
    # Taken letter by letter, this would have `clean` remove the root directory.
    (folder / "engine.json").write_text(json.dumps(fields | {"remove": "/nonexistent"}))

    assert registry.read_records(runtime_dir) == ()


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_record_that_somebody_else_may_have_written_is_not_believed(
    runtime_dir: Path, mode: int
) -> None:
    # `/tmp/assay-0` can be made by anyone who comes before root does.
    written(runtime_dir, a_record(remove=("/somewhere/precious",)))
    runtime_dir.chmod(mode)

    with suppress(UsageError):
        assert registry.read_records(runtime_dir) == ()


def test_a_record_in_a_runtime_folder_of_somebody_else_is_not_believed(runtime_dir: Path) -> None:
    require("root", available=os.geteuid() == 0, why="only root gives folders away")
    written(runtime_dir, a_record(remove=("/somewhere/precious",)))
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


def test_an_engine_has_as_many_processes_as_its_warden_has_descendants_and_itself() -> None:
    with a_child(have_a_child) as warden:
        record = registry.with_warden(a_record(), warden)

        assert record.processes() == 2

    assert record.processes() == 0


def test_an_engine_without_a_warden_has_no_processes() -> None:
    assert a_record().processes() == 0


def test_cleaning_up_ends_the_warden_and_removes_what_was_written_down(
    runtime_dir: Path, tmp_path: Path
) -> None:
    with a_child() as warden:
        left = tmp_path / "left"
        left.mkdir()
        record = registry.with_warden(a_record(remove=(str(left),)), warden)
        written(runtime_dir, record)

        registry.clean(runtime_dir, record)

        assert record.warden is not None
        assert not record.warden.alive
        assert not left.exists()
        assert list(runtime_dir.iterdir()) == []


def test_cleaning_up_spares_a_process_that_has_the_wardens_number_by_chance(
    runtime_dir: Path,
) -> None:
    with a_child() as bystander:
        mark = registry.mark(bystander)
        record = a_record(warden=replace(mark, started=mark.started - 1))
        written(runtime_dir, record)

        registry.clean(runtime_dir, record)

        assert mark.alive


def test_cleaning_up_one_engine_leaves_the_others(runtime_dir: Path) -> None:
    one, other = a_record(engine="one"), a_record(engine="other")
    written(runtime_dir, one)
    written(runtime_dir, other)

    registry.clean(runtime_dir, one)

    assert registry.read_records(runtime_dir) == (other,)
