import os
import time
from pathlib import Path, PurePosixPath

import pytest

from assay.contracts.errors import JournalError
from assay.contracts.workspace import Tree, TreeFile
from assay.storage.blob_store import BlobStore
from assay.storage.journal import DiskJournal
from assay.storage.layers import LayerStore
from assay.storage.read_workspace import read_workspace

# A local part of a key that no provider has issued.
TOKEN = "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3gH5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "pkg").mkdir(parents=True)
    (folder / "a.py").write_text("a = 1\n")
    (folder / "pkg" / "__init__.py").write_bytes(b"")
    (folder / "pkg" / "empty.py").write_bytes(b"")
    (folder / "pkg" / "run.sh").write_text("echo\n")
    (folder / "pkg" / "run.sh").chmod(0o755)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "state")


@pytest.fixture
def later(tmp_path: Path) -> LayerStore:
    """A store whose captures happen long after the files were written."""
    return LayerStore(tmp_path / "state", clock_ns=lambda: time.time_ns() + 10_000_000_000)


def place(tree: Tree, name: str) -> Path:
    assert tree.origin is not None
    return tree.origin.layer.folder / name


def layers(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "state" / "layers").iterdir() if len(path.name) == 64}


def test_a_layer_has_the_files_of_the_workspace(folder: Path, store: LayerStore) -> None:
    tree = store.capture(folder)

    assert tree == read_workspace(folder)
    assert {path.name for path in place(tree, "").iterdir()} == {"a.py", "pkg"}
    assert place(tree, "pkg/run.sh").stat().st_mode & 0o777 == 0o755
    assert place(tree, "a.py").stat().st_mode & 0o777 == 0o644
    assert store.load(tree.digest) == tree


def test_no_file_of_a_layer_is_one_of_the_user_or_another_of_the_layer(
    folder: Path, store: LayerStore
) -> None:
    tree = store.capture(folder)

    users = {path.stat().st_ino for path in folder.rglob("*")}
    own = [place(tree, str(path)).stat().st_ino for path in tree.files]
    assert users.isdisjoint(own)
    assert len(set(own)) == len(own)


def test_a_second_capture_writes_only_what_changed(folder: Path, later: LayerStore) -> None:
    first = later.capture(folder)
    (folder / "a.py").write_text("a = 2\n")
    (folder / "new.py").write_text("new = 1\n")

    second = later.capture(folder)

    assert second == read_workspace(folder)
    same = [
        str(path)
        for path in first.files
        if place(first, str(path)).samefile(place(second, str(path)))
    ]
    assert sorted(same) == ["pkg/__init__.py", "pkg/empty.py", "pkg/run.sh"]
    assert first.files[PurePosixPath("a.py")].content == b"a = 1\n"


def test_a_file_with_restored_times_is_read_again(folder: Path, later: LayerStore) -> None:
    before = (folder / "a.py").stat()
    later.capture(folder)
    (folder / "a.py").write_text("a = 9\n")
    os.utime(folder / "a.py", ns=(before.st_atime_ns, before.st_mtime_ns))

    assert later.capture(folder).text(PurePosixPath("a.py")) == "a = 9\n"


def test_a_file_that_was_just_written_is_read_again(folder: Path, store: LayerStore) -> None:
    for number in range(5):
        (folder / "a.py").write_text(f"a = {number}\n")
        assert store.capture(folder).text(PurePosixPath("a.py")) == f"a = {number}\n"


def test_a_secret_stays_withheld_and_can_be_included_later(folder: Path, later: LayerStore) -> None:
    (folder / "notes.txt").write_text(f"token {TOKEN}\n")
    path = PurePosixPath("notes.txt")

    later.capture(folder)
    for tree in (later.capture(folder), later.capture(folder)):
        assert [one.path for one in tree.withheld] == [path]
        assert not place(tree, "notes.txt").exists()
    included = later.capture(folder, include=(path,))

    assert TOKEN in (included.text(path) or "")
    assert not later.capture(folder).text(path)


def test_a_mode_that_changed_is_captured(folder: Path, later: LayerStore) -> None:
    later.capture(folder)
    (folder / "a.py").chmod(0o755)

    tree = later.capture(folder)

    assert tree.files[PurePosixPath("a.py")].executable
    assert place(tree, "a.py").stat().st_mode & 0o777 == 0o755


def test_layers_are_evicted_unless_something_uses_them(folder: Path, tmp_path: Path) -> None:
    store = LayerStore(tmp_path / "state", most_bytes=1)
    run = tmp_path / "state" / "runs" / "brisk-otter"
    run.mkdir(parents=True)
    digests: list[str] = []
    for number in range(3):
        (folder / "a.py").write_text(f"a = {number}\n")
        digests.append(store.capture(folder).digest)
        if number == 0:
            store.pin(digests[0], run)
    held = store.load(digests[0])
    (folder / "a.py").write_text("a = 3\n")
    last = store.capture(folder)

    # The second one is neither held nor pinned.
    assert digests[1] not in layers(tmp_path)
    assert {digests[0], last.digest} <= layers(tmp_path)
    run.rmdir()
    (folder / "a.py").write_text("a = 4\n")
    newer = store.capture(folder)
    assert digests[0] in layers(tmp_path)
    assert held.text(PurePosixPath("a.py")) == "a = 0\n"
    del held, last
    (folder / "a.py").write_text("a = 5\n")
    store.capture(folder)
    assert digests[0] not in layers(tmp_path)
    assert newer.text(PurePosixPath("a.py")) == "a = 4\n"


def test_a_damaged_file_of_a_layer_is_refused(folder: Path, store: LayerStore) -> None:
    tree = store.capture(folder)
    place(tree, "a.py").write_text("a = 7\n")

    with pytest.raises(JournalError, match="not what it was"):
        store.load(tree.digest).text(PurePosixPath("a.py"))


async def test_a_journal_stores_only_the_difference_from_a_layer(
    folder: Path, store: LayerStore, tmp_path: Path
) -> None:
    run = tmp_path / "state" / "runs" / "brisk-otter"
    tree = store.capture(folder)
    changed = tree.without([PurePosixPath("pkg/run.sh")]).with_files(
        {PurePosixPath("b.py"): TreeFile(b"b = 1\n")}
    )
    async with DiskJournal(run) as journal:
        await journal.store_tree(tree)
        await journal.store_tree(changed)

    assert len(list((run / "blobs").iterdir())) == 1
    assert b"a.py" not in (run / "trees" / f"{changed.digest}.json").read_bytes()
    loaded = BlobStore(run).load(changed.digest)
    assert loaded == changed
    assert loaded.origin is not None
    assert loaded.origin.layer.digest == tree.digest
