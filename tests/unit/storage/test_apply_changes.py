"""Changes come back into a person's folder whole, or not at all."""

import os
import stat
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts.errors import UsageError
from assay.contracts.workspace import FileChange, Tree, TreeFile
from assay.storage.apply_changes import write_changes
from assay.storage.read_workspace import read_workspace, write_tree


def tree(**files: str) -> Tree:
    return Tree(
        files={
            PurePosixPath(name.replace("__", "/")): TreeFile(text.encode())
            for name, text in files.items()
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def identity(path: Path) -> tuple[int, int, int]:
    """Return what a file keeps unless it is written: reading changes only its access time."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_changes_are_made_and_the_rest_is_left_alone(folder: Path) -> None:
    before = tree(same="1", edited="2", gone="3", deep__gone="4")
    after = tree(same="1", edited="two", new__er__file="5")
    write_tree(folder, before)
    (folder / "unknown").write_text("mine")
    untouched = identity(folder / "same")

    changes = write_changes(folder, before, after)

    assert read_workspace(folder) == after.with_files(tree(unknown="mine").files)
    assert not (folder / "deep").exists()
    assert identity(folder / "same") == untouched
    assert changes == (
        FileChange(path=PurePosixPath("deep/gone"), kind="deleted"),
        FileChange(path=PurePosixPath("edited"), kind="modified"),
        FileChange(path=PurePosixPath("gone"), kind="deleted"),
        FileChange(path=PurePosixPath("new/er/file"), kind="added"),
    )


PATHS = st.sampled_from(["a", "a/b", "a/b/c", "b", "b/a", "c"]).map(PurePosixPath)
FILES = st.builds(TreeFile, st.sampled_from([b"1", b"2"]), st.booleans())


def without_clashes(files: dict[PurePosixPath, TreeFile]) -> Tree:
    """Drop what would have to be a file and a folder at once."""
    folders = {parent for path in files for parent in path.parents}
    return Tree(files={path: file for path, file in files.items() if path not in folders})


TREES = st.dictionaries(PATHS, FILES).map(without_clashes)


@given(before=TREES, after=TREES)
def test_any_tree_becomes_any_other(
    tmp_path_factory: pytest.TempPathFactory, before: Tree, after: Tree
) -> None:
    folder = tmp_path_factory.mktemp("work")
    write_tree(folder, before)

    write_changes(folder, before, after)
    once = everything(folder)
    write_changes(folder, before, after)

    assert read_workspace(folder) == after
    assert everything(folder) == once


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("edited", "by hand", "edited: differs"),
        ("gone", "by hand", "gone: differs"),
        ("new", "by hand", "new: is there already"),
        ("edited", None, "edited: is gone"),
    ],
)
def test_what_was_edited_meanwhile_is_named_and_nothing_is_written(
    folder: Path, name: str, text: str | None, said: str
) -> None:
    before = tree(edited="1", gone="2", other="3")
    write_tree(folder, before)
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    untouched = everything(folder)

    with pytest.raises(UsageError, match=said) as refusal:
        write_changes(folder, before, tree(edited="one", other="three", new="4"))

    assert "assay show" in refusal.value.hint
    assert everything(folder) == untouched


def test_a_mode_that_was_changed_meanwhile_counts(folder: Path) -> None:
    before = tree(run="1")
    write_tree(folder, before)
    (folder / "run").chmod(0o755)

    with pytest.raises(UsageError, match="run: differs"):
        write_changes(folder, before, tree(run="2"))


def test_a_folder_that_became_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    before = tree(sub__a="1")
    write_tree(folder, before)
    elsewhere = tmp_path / "elsewhere"
    (folder / "sub").rename(elsewhere)
    (folder / "sub").symlink_to(elsewhere)

    with pytest.raises(UsageError, match="a file or a link is in the way"):
        write_changes(folder, before, tree(sub__a="2", sub__b="3"))

    assert everything(elsewhere) == {"a": ((elsewhere / "a").stat().st_mode, b"1")}


def test_a_file_that_became_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    before = tree(a="1")
    (tmp_path / "target").write_text("1")
    (folder / "a").symlink_to(tmp_path / "target")

    with pytest.raises(UsageError, match="a: is a link"):
        write_changes(folder, before, tree(a="2"))

    assert (tmp_path / "target").read_text() == "1"


def test_a_folder_with_more_in_it_is_not_replaced_by_a_file(folder: Path) -> None:
    before = tree(a__b="1")
    write_tree(folder, before)
    (folder / "a" / "cache.pyc").write_text("made by a tool")

    with pytest.raises(UsageError, match="a: a folder is in the way"):
        write_changes(folder, before, tree(a="2"))

    assert (folder / "a" / "b").read_text() == "1"


def test_a_pipe_in_the_way_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "a")

    with pytest.raises(UsageError, match="a: is not a file"):
        write_changes(folder, Tree(), tree(a="2"))


@pytest.mark.parametrize("path", ["../out", "/out"])
def test_a_change_cannot_leave_the_folder(folder: Path, tmp_path: Path, path: str) -> None:
    after = Tree(files={PurePosixPath(path): TreeFile(b"")})

    with pytest.raises(UsageError, match="leads out"):
        write_changes(folder, Tree(), after)

    assert not (tmp_path / "out").exists()


def test_modes_are_kept_and_only_the_right_to_run_changes(folder: Path) -> None:
    before = tree(private="1", becomes="2", ceases="3").with_files(
        {PurePosixPath("ceases"): TreeFile(b"3", executable=True)}
    )
    write_tree(folder, before)
    for name, mode in (("private", 0o600), ("becomes", 0o640), ("ceases", 0o755)):
        (folder / name).chmod(mode)
    after = tree(private="one", ceases="three").with_files(
        {PurePosixPath("becomes"): TreeFile(b"2", executable=True)}
    )

    write_changes(folder, before, after)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {"private": 0o600, "becomes": 0o750, "ceases": 0o644}


def test_a_reader_has_the_old_file_or_the_new_one(folder: Path) -> None:
    before = tree(a="old")
    write_tree(folder, before)
    with (folder / "a").open() as reader:
        write_changes(folder, before, tree(a="new"))

        assert reader.read() == "old"
    assert (folder / "a").read_text() == "new"


def test_a_folder_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        write_changes(folder / "nothing", Tree(), tree(a="1"))
