"""`assay memory` from outside."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from assay.contracts.errors import ExitCode
from assay.memory.sqlite_store import SqliteStore
from assay.memory.stored_memory import StoredMemory
from assay.memory.types import Scope
from tests.conformance.memory.failures import CHART, DURATIONS, SNIPPET, UNSOLVED, query_for
from tests.support.loops import run_apart

DAY = 86_400.0


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.defpath,
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "assay" / "memory.sqlite"


@pytest.fixture
def filled(file: Path) -> Path:
    run_apart(fill, file)
    return file


async def fill(path: Path) -> None:
    """Let two failures happen over ten days, one of them again and again."""
    now = 1_700_000_000.0
    store = SqliteStore(path, Scope())
    memory = StoredMemory(store, Scope(), now=lambda: now)
    for day in range(10):
        now += DAY
        await memory.learn(replace(DURATIONS, run=f"run-{day}"))
        if day == 3:
            await memory.learn(replace(CHART, message="KeyError: 'Month' \x1b[31m"))
    lessons = await memory.recall(query_for(DURATIONS, "failure"))
    await memory.judge((lessons[0].id,), helped=True)
    await memory.settle()
    store.close()


async def keep_snippet(path: Path) -> None:
    store = SqliteStore(path, Scope())
    await StoredMemory(store, Scope()).keep(SNIPPET)
    store.close()


def memory(env: Mapping[str, str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "assay", "memory", *map(str, words)],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("words", [["list"], ["stats"], ["search", "anything"]])
def test_looking_into_an_empty_memory_makes_no_file(
    home: dict[str, str], file: Path, words: list[str]
) -> None:
    done = memory(home, *words)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no ")
    assert not file.exists()


@pytest.mark.usefixtures("filled")
def test_list_shows_failures_and_lessons_the_newest_first(home: dict[str, str]) -> None:
    done = memory(home, "list")

    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout
    assert "NameError: name 're' is not defined" in lines[1]
    assert "add `import re` in durations.py" in lines[1]
    assert "KeyError" in lines[2]
    assert "\x1b" not in done.stdout


@pytest.mark.usefixtures("filled")
def test_show_tells_everything_about_one(home: dict[str, str]) -> None:
    listed = json.loads(memory(home, "list", "--json").stdout)
    id_ = listed[0]["id"]

    shown = memory(home, "show", id_[:6])
    as_json = json.loads(memory(home, "show", id_, "--json").stdout)

    assert shown.returncode == 0
    for part in (id_, "10 times", "helped 1, harmed 0", "cause:", "fix:", "run-9"):
        assert part in shown.stdout
    assert as_json == listed[0]
    assert as_json["seen"] == 10
    assert as_json["used"] == 1


@pytest.mark.usefixtures("filled")
def test_search_finds_by_word_and_by_likeness(home: dict[str, str]) -> None:
    by_word = json.loads(memory(home, "search", "KeyError", "--json").stdout)
    by_likeness = json.loads(memory(home, "search", "chart", "monthly revenue", "--json").stdout)
    nothing = memory(home, "search", "kubernetes")

    assert by_word[0]["kind"] == "KeyError"
    assert by_word[0]["likeness"] == 1
    assert by_likeness[0]["kind"] == "KeyError"
    assert nothing.stdout == "no failure or snippet matches\n"


@pytest.mark.usefixtures("filled")
def test_stats_draw_failures_and_repeats_over_time(home: dict[str, str]) -> None:
    drawn = memory(home, "stats")
    counted = json.loads(memory(home, "stats", "--json").stdout)

    assert counted["failures"] == 11
    assert counted["repeats"] == 9
    assert len(counted["periods"]) == 10
    assert counted["frequent"][0] == {"failure": "NameError: name 're' is not defined", "seen": 10}
    assert counted["set_aside"] == []
    bars = [line for line in drawn.stdout.splitlines() if "█" in line or "▒" in line][1:]
    assert len(bars) == 10
    assert "█" in bars[0]
    assert "▒" not in bars[0]
    assert "▒" in bars[9]


@pytest.mark.usefixtures("filled")
def test_an_export_can_be_forgotten_and_imported_again(
    home: dict[str, str], tmp_path: Path
) -> None:
    export = tmp_path / "failures.jsonl"
    before = json.loads(memory(home, "list", "--json").stdout)

    exported = memory(home, "export", export)
    forgotten = memory(home, "forget", "--all", "--yes")
    empty = json.loads(memory(home, "list", "--json").stdout)
    imported = memory(home, "import", export)
    again = json.loads(memory(home, "import", export, "--json").stdout)

    assert exported.returncode == forgotten.returncode == imported.returncode == 0
    assert forgotten.stdout == "forgot 2\n"
    assert empty == []
    assert imported.stdout == "imported 2\n"
    assert again == {"imported": 0, "known": 2}
    after = json.loads(memory(home, "list", "--json").stdout)
    assert [one["id"] for one in after] == [one["id"] for one in before]
    assert [one["seen"] for one in after] == [10, 1]
    assert len(memory(home, "export").stdout.splitlines()) == 3


def test_forget_removes_the_one_that_is_named(home: dict[str, str], filled: Path) -> None:
    id_ = json.loads(memory(home, "list", "--json").stdout)[0]["id"]

    done = memory(home, "forget", id_[:8], "--json", "--yes")

    assert json.loads(done.stdout) == {"forgotten": 1}
    assert [one["kind"] for one in json.loads(memory(home, "list", "--json").stdout)] == [
        "KeyError"
    ]
    assert b"parse_duration" not in filled.read_bytes()


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "zzzzzz"], "no failure or snippet has the id 'zzzzzz'"),
        (["show", "a"], "give at least 4 characters"),
        (["forget"], "say what to forget"),
        (["forget", "--all", "--retired"], "say what to forget"),
        (["import", "/dev/null/x"], "/dev/null/x"),
        (["import", sys.executable], "not text"),
        (["export", "/dev/null/x"], "/dev/null/x"),
        (["search"], "Missing argument"),
    ],
)
def test_bad_input_gets_a_line_and_a_hint(
    home: dict[str, str], words: list[str], said: str
) -> None:
    done = memory(home, *words)

    assert done.returncode == ExitCode.USAGE
    assert said.lower() in done.stderr.lower()
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_an_import_that_is_wrong_in_the_middle_changes_nothing(
    home: dict[str, str], filled: Path, tmp_path: Path
) -> None:
    export = tmp_path / "failures.jsonl"
    memory(home, "export", export)
    lines = export.read_text().splitlines()
    export.write_text("\n".join([lines[0], lines[1].replace("durations", "others"), "{"]))

    done = memory(home, "import", export)

    assert done.returncode == ExitCode.USAGE
    assert "line 3" in done.stderr
    with closing(sqlite3.connect(filled)) as database:
        assert database.execute("SELECT count(*) FROM records").fetchone() == (2,)


def test_a_damaged_memory_is_set_aside_and_told(home: dict[str, str], filled: Path) -> None:
    filled.write_bytes(b"no database\n" * 500)

    done = memory(home, "list")
    counted = json.loads(memory(home, "stats", "--json").stdout)

    assert done.returncode == 0
    assert "is damaged; it was set aside" in done.stderr
    assert len(counted["set_aside"]) == 1
    assert Path(counted["set_aside"][0]).read_bytes() == b"no database\n" * 500


def test_retired_failures_can_be_forgotten_alone(home: dict[str, str], file: Path) -> None:
    async def harm() -> None:
        store = SqliteStore(file, Scope())
        harmed = StoredMemory(store, Scope())
        await harmed.learn(UNSOLVED)
        await harmed.learn(CHART)
        (lesson,) = await harmed.recall(query_for(CHART, "failure"))
        for _ in range(6):
            await harmed.judge((lesson.id,), helped=False)
        store.close()

    run_apart(harm)

    assert memory(home, "forget", "--retired", "--yes").stdout == "forgot 1\n"
    assert [one["kind"] for one in json.loads(memory(home, "list", "--json").stdout)] == [
        "NameError"
    ]


def test_helpers_are_listed_shown_found_counted_and_forgotten(
    home: dict[str, str], filled: Path
) -> None:
    run_apart(keep_snippet, filled)

    (kept,) = [
        one for one in json.loads(memory(home, "list", "--json").stdout) if one["what"] == "snippet"
    ]
    shown = memory(home, "show", kept["id"][:6]).stdout
    found = json.loads(memory(home, "search", "slug", "--json").stdout)
    counted = json.loads(memory(home, "stats", "--json").stdout)

    assert "slug(title: str) -> str" in memory(home, "list").stdout
    for part in (
        "slug(title: str)",
        "proven",
        "run-3",
        "words.py:",
        "title.lower()",
        "def test_it",
    ):
        assert part in shown
    assert [one["id"] for one in found] == [kept["id"]]
    assert counted["snippets"] == 1
    assert "1 snippet," in memory(home, "stats").stdout
    assert memory(home, "forget", kept["id"], "--yes").stdout == "forgot 1\n"
    assert b"title.lower" not in filled.read_bytes()


def test_helpers_go_with_an_export_into_another_memory(
    home: dict[str, str], filled: Path, tmp_path: Path
) -> None:
    run_apart(keep_snippet, filled)
    elsewhere = {**home, "XDG_STATE_HOME": str(tmp_path / "elsewhere")}
    export = tmp_path / "all.jsonl"

    memory(home, "export", export)
    imported = json.loads(memory(elsewhere, "import", export, "--json").stdout)

    assert imported == {"imported": 3, "known": 0}
    here, there = (
        {one["id"]: one for one in json.loads(memory(env, "list", "--json").stdout)}
        for env in (home, elsewhere)
    )
    assert here == there


@pytest.mark.usefixtures("filled")
def test_what_is_kept_in_chroma_is_not_passed_off_as_the_file(home: dict[str, str]) -> None:
    done = memory({**home, "ASSAY_MEMORY__STORE": "chroma"}, "list")

    assert done.returncode == ExitCode.USAGE
    assert "chroma" in done.stderr
    assert "hint: " in done.stderr
