import os
from pathlib import Path

import pytest

from assay.sandbox.native.kernel.rmtree import remove_tree


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


def test_a_folder_goes_with_everything_in_it(tmp_path: Path) -> None:
    box = tmp_path / "box"
    (box / "a" / "b").mkdir(parents=True)
    (box / "a" / "b" / "file").write_text("x")
    (box / "file").write_text("x")
    os.mkfifo(box / "a" / "pipe")

    remove_tree(str(box))

    assert is_empty(tmp_path)


def test_a_folder_deeper_than_any_path_may_be_long_goes_too(tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    nest(box, depth=1200, name="d" * 20)

    remove_tree(str(box))

    assert is_empty(tmp_path)


def nest(top: Path, *, depth: int, name: str) -> None:
    current = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=current)
        below = os.open(name, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)


def test_a_link_goes_and_what_it_points_to_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    box = tmp_path / "box"
    (box / "deep").mkdir(parents=True)
    (box / "link").symlink_to(outside)
    (box / "deep" / "link").symlink_to(outside / "precious")
    (box / "deep" / "up").symlink_to("../..")

    remove_tree(str(box))

    assert not box.exists()
    assert (outside / "precious").read_text() == "x"


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (tmp_path / "box").symlink_to(outside)

    remove_tree(str(tmp_path / "box"))

    assert (outside / "precious").read_text() == "x"


def test_folders_that_nobody_may_enter_go_too(tmp_path: Path) -> None:
    box = tmp_path / "box"
    (box / "closed" / "deeper").mkdir(parents=True)
    (box / "closed" / "deeper" / "file").write_text("x")
    for path in (box / "closed" / "deeper", box / "closed"):
        path.chmod(0)

    remove_tree(str(box))

    assert is_empty(tmp_path)


def test_names_like_those_given_on_the_way_do_not_confuse_it(tmp_path: Path) -> None:
    box = tmp_path / "box"
    for number in range(4):
        (box / f".assay-removed-{number}" / "x" / f".assay-removed-{number}" / "y").mkdir(
            parents=True
        )

    remove_tree(str(box))

    assert is_empty(tmp_path)


@pytest.mark.parametrize("kind", ["absent", "file"])
def test_what_is_no_folder_is_left_alone(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "box"
    if kind == "file":
        place.write_text("x")

    remove_tree(str(place))

    assert place.exists() == (kind == "file")
