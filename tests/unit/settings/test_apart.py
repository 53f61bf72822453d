"""Benchmarks keep to a memory of their own, whatever the person's settings say."""

from pathlib import Path

from assay.contracts.lessons import RecallQuery
from assay.memory.database import MEMORY
from assay.settings.load import MemorySettings, Settings
from assay.wiring import open_memory, settings_apart
from tests.conformance.memory.failures import CHART, DURATIONS, SNIPPET, query_for


async def test_what_runs_apart_neither_sees_nor_changes_the_persons_memory(tmp_path: Path) -> None:
    own = Settings(state_dir=tmp_path / "own")
    async with open_memory("all", own) as memory:
        await memory.learn(DURATIONS)
        await memory.keep(SNIPPET)
    before = (tmp_path / "own" / MEMORY).read_bytes()

    async with open_memory("all", settings_apart(own, tmp_path / "bench")) as memory:
        assert await memory.recall(query_for(DURATIONS, "failure")) == ()
        assert await memory.offer(RecallQuery(moment="plan", goal=SNIPPET.purpose)) == ()
        await memory.learn(CHART)
        await memory.keep(SNIPPET)

    assert (tmp_path / "own" / MEMORY).read_bytes() == before
    async with open_memory("all", own) as memory:
        assert await memory.recall(query_for(CHART, "failure")) == ()


async def test_what_runs_apart_reaches_no_server_that_others_share(tmp_path: Path) -> None:
    shared = MemorySettings(store="chroma", chroma_url="http://127.0.0.1:9")

    apart = settings_apart(Settings(memory=shared), tmp_path)

    async with open_memory("all", apart) as memory:
        await memory.learn(DURATIONS)
    assert (tmp_path / MEMORY).exists()


async def test_two_benchmarks_do_not_feed_each_other(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path / "own")
    async with open_memory("all", settings_apart(settings, tmp_path / "one")) as memory:
        await memory.learn(DURATIONS)

    async with open_memory("all", settings_apart(settings, tmp_path / "two")) as memory:
        assert await memory.recall(query_for(DURATIONS, "failure")) == ()
