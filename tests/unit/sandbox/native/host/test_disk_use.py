import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay.sandbox.native.host.files import BEYOND_ANY_LIMIT, disk_use
from tests.support.forked import outcome_of
from tests.support.leftovers import open_descriptors
from tests.support.requirements import require

MEGABYTE = 1 << 20
NOBODY = 65534


def test_the_disk_use_of_a_box_counts_content_and_names(tmp_path: Path) -> None:
    empty = disk_use(tmp_path)
    for number in range(10):
        (tmp_path / str(number)).touch()
    names = disk_use(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "content").write_bytes(b"x" * MEGABYTE)

    content = disk_use(tmp_path)

    assert empty == 0
    assert names >= 10 * 512
    assert content - names >= MEGABYTE


def test_a_file_with_holes_uses_only_what_is_written(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(100 * MEGABYTE)

    assert disk_use(tmp_path) < MEGABYTE


def test_what_a_link_points_to_is_not_in_the_box(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "large").write_bytes(b"x" * MEGABYTE)
    box = tmp_path / "box"
    box.mkdir()
    (box / "link").symlink_to(tmp_path / "outside")
    (box / "file").symlink_to(tmp_path / "outside" / "large")

    assert disk_use(box) < MEGABYTE


def nest(top: Path, *, depth: int, name: str, content: bytes) -> None:
    """Make folders in folders, deeper than a path can say, with a file at the bottom."""
    current = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=current)
        below = os.open(name, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    file = os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=current)
    os.write(file, content)
    os.close(file)
    os.close(current)


def test_what_lies_deeper_than_any_path_may_be_long_is_counted(tmp_path: Path) -> None:
    nest(tmp_path, depth=100, name="d" * 100, content=b"x" * MEGABYTE)
    before = open_descriptors()

    found = disk_use(tmp_path)

    assert MEGABYTE < found < 2 * MEGABYTE
    assert open_descriptors() == before


def test_a_box_too_deep_to_be_walked_is_too_large(tmp_path: Path) -> None:
    nest(tmp_path, depth=600, name="d" * 250, content=b"")

    assert disk_use(tmp_path) == BEYOND_ANY_LIMIT


@contextmanager
def a_box_of_nobody(tmp_path: Path) -> Generator[Path]:
    """A box that belongs to somebody ordinary, in a place they can reach."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == tmp_path.owner() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    box = tmp_path / "box"
    (box / "closed" / "deeper").mkdir(parents=True)
    for name in ("closed/one", "closed/deeper/other"):
        (box / name).write_bytes(b"x" * MEGABYTE)
    for path in (box, *box.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    yield box


@pytest.mark.parametrize("mode", [0o000, 0o300, 0o111, 0o333])
def test_a_folder_that_its_owner_has_closed_is_counted_and_stays_closed(
    tmp_path: Path, mode: int
) -> None:
    require(
        "root", available=os.geteuid() == 0, why="nothing is closed to root, so we become nobody"
    )
    with a_box_of_nobody(tmp_path) as box:
        for folder in (box / "closed" / "deeper", box / "closed"):
            folder.chmod(mode)

        found = int(outcome_of(lambda: disk_use(box), uid=NOBODY))

        assert 2 * MEGABYTE < found < 3 * MEGABYTE
        assert (box / "closed").stat().st_mode & 0o777 == mode
        assert (box / "closed" / "deeper").stat().st_mode & 0o777 == mode


def test_a_box_that_is_closed_itself_is_counted(tmp_path: Path) -> None:
    require(
        "root", available=os.geteuid() == 0, why="nothing is closed to root, so we become nobody"
    )
    with a_box_of_nobody(tmp_path) as box:
        box.chmod(0)

        found = int(outcome_of(lambda: disk_use(box), uid=NOBODY))

        assert 2 * MEGABYTE < found < 3 * MEGABYTE
        assert box.stat().st_mode & 0o777 == 0


def test_a_box_whose_way_is_closed_is_too_large_and_one_that_is_gone_is_empty(
    tmp_path: Path,
) -> None:
    require(
        "root", available=os.geteuid() == 0, why="nothing is closed to root, so we become nobody"
    )
    with a_box_of_nobody(tmp_path) as box:
        (box / "closed").chmod(0)

        hidden = outcome_of(lambda: disk_use(box / "closed" / "deeper"), uid=NOBODY)

        assert hidden == str(BEYOND_ANY_LIMIT)
        assert disk_use(box / "gone") == 0
