"""A journal on disk after crashes, beside another process, and for nobody else to read."""

import stat
from pathlib import Path, PurePosixPath

import anyio
import anyio.lowlevel
import pytest

from assay.contracts.errors import JournalError, UsageError
from assay.contracts.events import AttemptStarted, RunEvent
from assay.contracts.workspace import Tree, TreeFile
from assay.storage import lock
from assay.storage.blob_store import BlobStore
from assay.storage.journal import DiskJournal, read_events

TREE = Tree(files={PurePosixPath("a/b.py"): TreeFile(b"b = 1\n")})
REPLIES = {f"reply {number}": {"text": "é" * number, "n": number} for number in range(1, 4)}


def started(attempt: int) -> AttemptStarted:
    return AttemptStarted(attempt=attempt, action="sample")


async def write_a_run(folder: Path) -> None:
    async with DiskJournal(folder) as journal:
        for number, (key, value) in enumerate(REPLIES.items(), 1):
            journal.emit(started(number), key=f"attempt {number}")
            await journal.keep(key, value)


def ends_of_lines(content: bytes) -> list[int]:
    return [place + 1 for place, byte in enumerate(content) if byte == ord("\n")]


async def test_events_that_were_cut_anywhere_are_dropped_and_written_anew(tmp_path: Path) -> None:
    await write_a_run(tmp_path)
    file = tmp_path / "events.jsonl"
    content = file.read_bytes()
    for length in range(len(content) + 1):
        file.write_bytes(content[:length])
        whole = sum(end <= length for end in ends_of_lines(content))

        told: list[RunEvent] = []
        async with DiskJournal(tmp_path, listeners=(told.append,)) as journal:
            for number in range(1, 4):
                journal.emit(started(number), key=f"attempt {number}")

        everything = [started(number) for number in range(1, 4)]
        assert told == everything[whole:]
        assert [recorded.event for recorded in read_events(tmp_path)] == everything


async def test_what_was_kept_whole_is_there_wherever_the_file_was_cut(tmp_path: Path) -> None:
    await write_a_run(tmp_path)
    file = tmp_path / "kept.jsonl"
    content = file.read_bytes()
    for length in range(len(content) + 1):
        file.write_bytes(content[:length])
        whole = sum(end <= length for end in ends_of_lines(content))

        async with DiskJournal(tmp_path) as journal:
            found = [await journal.recall(key) for key in REPLIES]
            await journal.keep("after the crash", {"length": length})
        async with DiskJournal(tmp_path) as journal:
            after = await journal.recall("after the crash")

        assert found == [*list(REPLIES.values())[:whole], *[None] * (len(REPLIES) - whole)]
        assert after == {"length": length}


@pytest.mark.parametrize("name", ["events.jsonl", "kept.jsonl"])
async def test_damage_before_the_last_line_is_named_and_nothing_is_cut(
    tmp_path: Path, name: str
) -> None:
    await write_a_run(tmp_path)
    file = tmp_path / name
    damaged = file.read_bytes().replace(b'{"v"', b'}"v"', 1)
    file.write_bytes(damaged)

    with pytest.raises(JournalError, match=rf"{name}:1: this line is damaged"):
        async with DiskJournal(tmp_path):
            pass

    assert file.read_bytes() == damaged
    assert not lock.is_held(tmp_path)


@pytest.mark.parametrize("place", ["blobs", "trees"])
async def test_a_state_that_was_cut_anywhere_is_refused(tmp_path: Path, place: str) -> None:
    async with DiskJournal(tmp_path) as journal:
        await journal.store_tree(TREE)
    (file,) = (tmp_path / place).iterdir()
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        # The end of the line of a list says nothing.
        if content[:length].strip() == content.strip():
            continue
        with pytest.raises(JournalError):
            BlobStore(tmp_path).load(TREE.digest)


async def test_what_a_crash_left_half_written_is_removed(tmp_path: Path) -> None:
    async with DiskJournal(tmp_path) as journal:
        await journal.store_tree(TREE)
    left = [tmp_path / place / ".draft-0123" for place in ("blobs", "trees")]
    for file in left:
        file.write_bytes(b"half")

    async with DiskJournal(tmp_path) as journal:
        assert await journal.load_tree(TREE.digest) == TREE

    assert not any(file.exists() for file in left)


async def test_a_state_whose_contents_were_lost_can_be_kept_anew(tmp_path: Path) -> None:
    async with DiskJournal(tmp_path) as journal:
        await journal.store_tree(TREE)
    (pack,) = (tmp_path / "blobs").iterdir()
    pack.write_bytes(pack.read_bytes()[:20])

    async with DiskJournal(tmp_path) as journal:
        with pytest.raises(JournalError, match="is lost"):
            await journal.load_tree(TREE.digest)
        await journal.store_tree(TREE)

        assert await journal.load_tree(TREE.digest) == TREE


async def test_contents_that_are_kept_are_not_written_again(tmp_path: Path) -> None:
    more = TREE.with_files({PurePosixPath("copy"): TreeFile(b"b = 1\n", executable=True)})
    async with DiskJournal(tmp_path) as journal:
        await journal.store_tree(TREE)
        await journal.store_tree(more)

        assert len(list((tmp_path / "blobs").iterdir())) == 1
        assert await journal.load_tree(more.digest) == more


async def test_a_list_that_names_another_file_is_refused(tmp_path: Path) -> None:
    async with DiskJournal(tmp_path) as journal:
        await journal.store_tree(TREE)
    (listing,) = (tmp_path / "trees").iterdir()
    listing.write_text(listing.read_text().replace("a/b.py", "a/c.py"))

    with pytest.raises(JournalError, match="not what it was"):
        BlobStore(tmp_path).load(TREE.digest)


async def test_a_run_is_worked_on_by_one_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "brisk-otter-4f2a"
    async with DiskJournal(folder):
        with pytest.raises(UsageError, match=r"another process works on .*brisk-otter-4f2a"):
            async with DiskJournal(folder):
                pass
        assert lock.is_held(folder)

    async with DiskJournal(folder) as journal:
        await journal.keep("a", {})


async def test_looking_whether_a_run_is_held_turns_nobody_away(tmp_path: Path) -> None:
    async with DiskJournal(tmp_path):
        pass
    done = anyio.Event()

    async def look() -> None:
        while not done.is_set():
            lock.is_held(tmp_path)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        for _ in range(20):
            async with DiskJournal(tmp_path):
                pass
        done.set()


async def test_nobody_else_may_read_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "runs" / "one"
    async with DiskJournal(folder) as journal:
        journal.emit(started(1))
        await journal.keep("a", {})
        await journal.store_tree(TREE)

    everything = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in everything if path.is_dir()}
    assert modes == {0o700}
    modes = {stat.S_IMODE(path.stat().st_mode) for path in everything if path.is_file()}
    assert modes == {0o600}


async def test_keeping_goes_to_its_end_when_it_is_cancelled(tmp_path: Path) -> None:
    async with DiskJournal(tmp_path) as journal:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await journal.keep("paid for", {"n": 1})

        assert await journal.recall("paid for") == {"n": 1}


async def test_what_was_kept_is_found_by_how_its_key_begins(tmp_path: Path) -> None:
    async with DiskJournal(tmp_path) as journal:
        for key in ("reply:1", "other", "reply:2"):
            await journal.keep(key, {"key": key})
    async with DiskJournal(tmp_path) as journal:
        found = dict(journal.kept_under("reply:"))

    assert found == {"1": {"key": "reply:1"}, "2": {"key": "reply:2"}}


async def test_events_come_in_while_others_are_made_durable(tmp_path: Path) -> None:
    async with DiskJournal(tmp_path) as journal, anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(journal.keep, f"key {number}", {"n": number})
        for number in range(200):
            journal.emit(started(number))
            await anyio.lowlevel.checkpoint()

    found = [recorded.event for recorded in read_events(tmp_path)]
    assert found == [started(number) for number in range(200)]


async def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(JournalError, match="cannot be used"):
        async with DiskJournal(tmp_path / "file" / "run"):
            pass
