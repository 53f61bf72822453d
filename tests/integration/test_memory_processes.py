"""The file of the memory under several processes, kills and damage."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from anyio import to_thread

from assay.contracts.errors import JournalError, UsageError
from assay.contracts.lessons import RecallQuery
from assay.memory.database import SCHEMA_VERSION, damaged_files
from assay.memory.sqlite_store import SqliteStore
from assay.memory.stored_memory import ResilientMemory, StoredMemory, open_sqlite_memory
from assay.memory.types import Scope
from tests.conformance.memory.failures import CHART, DURATIONS, query_for

WRITER = """
import itertools, sys
from dataclasses import replace
from pathlib import Path
import anyio
from assay.memory.types import Scope
from assay.memory.stored_memory import open_sqlite_memory
from tests.conformance.memory.failures import DURATIONS, query_for

async def write(path, name, count):
    async with open_sqlite_memory(path, Scope()) as memory:
        print("open", flush=True)
        sys.stdin.readline()
        for n in itertools.count() if count < 0 else range(count):
            failure = replace(
                DURATIONS, goal=f"goal {name} {n}", run=f"{name} {n}",
                action="x" * 3000 + name, lesson=f"lesson {name} {n}",
            )
            await memory.learn(failure)
            # One failure that all of them have, so that they change the same record too.
            await memory.learn(replace(DURATIONS, run=f"{name} {n}"))
            if n % 5 == 0:
                lessons = await memory.recall(query_for(failure, "plan"))
                await memory.judge(tuple(one.id for one in lessons[:1]), helped=True)
            print(n, flush=True)

anyio.run(write, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
"""


def a_writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def let_write(path: Path, names: str, count: int) -> None:
    """Let processes write at once: none begins before all have it open."""
    writers = [a_writer(path, name, count) for name in names]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "open\n"
        for writer in writers:
            writer.communicate("go\n", timeout=100)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert [writer.returncode for writer in writers] == [0] * len(names)


def write_until_killed(path: Path, steps: int) -> int:
    """Return the last record of which the writer was told that it is kept."""
    with a_writer(path, "k", -1) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        writer.stdin.write("go\n")
        writer.stdin.flush()
        told = [int(writer.stdout.readline()) for _ in range(steps)]
        writer.kill()
        told += [int(line) for line in writer.stdout if line.endswith("\n")]
    assert writer.returncode == -signal.SIGKILL
    return told[-1]


@pytest.mark.slow
async def test_four_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"

    await to_thread.run_sync(let_write, path, "abcd", 15)

    with closing(SqliteStore(path, None)) as store:
        records = {record.goal: record for record in store.records()}
        occurrences = store.occurrences()
    expected = {f"goal {name} {number}" for name in "abcd" for number in range(15)}
    assert expected < set(records)
    assert len(records) == 61
    assert records[DURATIONS.goal].seen == 60
    assert len(occurrences) == 120
    # Whoever was judged, all judgements were counted.
    assert sum(record.helped for record in records.values()) == 12


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 5, 17])
async def test_a_killed_writer_loses_at_most_what_it_was_writing(
    tmp_path: Path, steps: int
) -> None:
    path = tmp_path / "memory.sqlite"

    last = await to_thread.run_sync(write_until_killed, path, steps)

    notices: list[str] = []
    with closing(SqliteStore(path, None, notices.append)) as store:
        goals = {record.goal for record in store.records()}
    assert {f"goal k {number}" for number in range(last + 1)} <= goals
    assert not notices
    assert not damaged_files(path)


async def test_a_memory_whose_writer_was_killed_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    await to_thread.run_sync(write_until_killed, path, 3)

    async with open_sqlite_memory(path, Scope()) as memory:
        await memory.learn(CHART)

        assert len(await memory.recall(query_for(CHART, "failure"))) == 1


def damage_all(path: Path) -> None:
    path.write_bytes(b"this was a database once\n" * 100)


def damage_middle(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    content[5000:9000] = b"\xff" * 4000
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [damage_all, damage_middle])
async def test_a_damaged_file_is_set_aside_and_said_so(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    path = tmp_path / "memory.sqlite"
    async with open_sqlite_memory(path, Scope()) as memory:
        await memory.learn(DURATIONS)
    damage(path)
    broken = path.read_bytes()
    notices: list[str] = []

    async with open_sqlite_memory(path, Scope(), on_notice=notices.append) as memory:
        assert await memory.recall(query_for(DURATIONS, "failure")) == ()
        await memory.learn(CHART)

    (aside,) = damaged_files(path)
    assert aside.read_bytes() == broken
    assert len(notices) == 1
    assert aside.name in notices[0]


async def test_a_sound_file_is_not_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    for _ in range(2):
        async with open_sqlite_memory(path, Scope(), on_notice=pytest.fail) as memory:
            await memory.learn(DURATIONS)

    assert damaged_files(path) == ()


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
async def test_a_file_of_another_version_is_left_alone(tmp_path: Path, version: int) -> None:
    path = tmp_path / "memory.sqlite"
    SqliteStore(path, None).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()

    with pytest.raises(UsageError, match="another version of Assay"):
        SqliteStore(path, None)

    assert path.read_bytes() == before
    assert damaged_files(path) == ()


def test_nobody_else_can_read_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "state" / "memory.sqlite"
    with closing(SqliteStore(path, None)) as store:
        assert store.records() == ()
        modes = {file.name: file.stat().st_mode & 0o077 for file in path.parent.iterdir()}

    assert len(modes) >= 2
    assert not any(modes.values()), modes
    assert path.parent.stat().st_mode & 0o077 == 0


def test_what_is_forgotten_is_not_left_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"

    def found() -> bool:
        return any(b"parse_duration" in file.read_bytes() for file in tmp_path.iterdir())

    with closing(SqliteStore(path, None)) as store:
        from assay.memory.types import record_of

        store.import_([record_of(DURATIONS, Scope(), 1.0)])
        assert found()

        assert store.forget([store.records()[0].id]) == 1
        assert not found()


async def test_a_memory_that_fails_does_not_end_a_run(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "memory.sqlite", Scope())
    broken = StoredMemory(store, Scope())
    store.close()
    notices: list[str] = []
    memory = ResilientMemory(broken, notices.append)

    with pytest.raises(JournalError):
        await broken.learn(DURATIONS)
    await memory.learn(DURATIONS)
    await memory.judge(("a",), helped=True)
    lessons = await memory.recall(RecallQuery(moment="plan", goal=DURATIONS.goal))

    assert lessons == ()
    assert len(notices) == 1


async def test_an_index_follows_what_other_processes_do(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    async with open_sqlite_memory(path, Scope()) as memory:
        await memory.learn(DURATIONS)
        assert len(await memory.recall(query_for(DURATIONS, "plan"))) == 1

        await to_thread.run_sync(let_write, path, "z", 3)
        found = await memory.recall(replace(query_for(DURATIONS, "plan"), goal="goal z 2"))
        assert found[0].text == "lesson z 2"

        with closing(SqliteStore(path, None)) as store:
            store.forget([record.id for record in store.records()])
        assert await memory.recall(query_for(DURATIONS, "plan")) == ()


async def test_a_large_file_found_damaged_in_use_is_set_aside_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the file were too large to be checked whenever it is opened.
    monkeypatch.setattr("assay.memory.database._QUICKLY_CHECKED", 0)
    path = tmp_path / "memory.sqlite"
    async with open_sqlite_memory(path, Scope()) as memory:
        for number in range(40):
            await memory.learn(replace(DURATIONS, goal=f"goal {number}", run=f"{number}"))
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    content[20_000:-4096] = b"\xff" * (len(content) - 24_096)
    path.write_bytes(content)
    with closing(SqliteStore(path, None)) as store, pytest.raises(JournalError) as told:
        store.records()
    assert "opened next" in told.value.hint
    notices: list[str] = []

    SqliteStore(path, None, notices.append).close()

    assert len(damaged_files(path)) == len(notices) == 1
    SqliteStore(path, None, pytest.fail).close()
