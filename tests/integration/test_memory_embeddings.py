"""Embeddings from an endpoint, and what becomes of a memory when it is not there."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import SecretStr

from assay.contracts.errors import ModelUnavailableError
from assay.contracts.lessons import RecallQuery
from assay.memory.embedding import Endpoint, open_endpoint_embedder
from assay.memory.stored_memory import open_sqlite_memory
from assay.memory.types import Scope
from assay.settings.load import Settings
from assay.wiring import open_memory
from tests.conformance.memory.failures import CHART, DURATIONS, query_for
from tests.support.requirements import require

GOAL_IN_OTHER_WORDS = RecallQuery(
    moment="plan", goal="Convert a human-readable time span to a number"
)


class _Meaning(BaseHTTPRequestHandler):
    """Knows one meaning that no words share: all that is about time, and the rest."""

    seen: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append({"path": self.path, "key": self.headers["Authorization"], **asked})
        vectors = [[1.0, 0.0] if "time" in text or "1h30m" in text else [0.0, 1.0]
                   for text in asked["input"]]  # fmt: skip
        data = [
            {"object": "embedding", "index": at, "embedding": v} for at, v in enumerate(vectors)
        ]
        body = json.dumps({"object": "list", "data": data, "model": asked["model"],
                           "usage": {"prompt_tokens": 1, "total_tokens": 1}}).encode()  # fmt: skip
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def an_endpoint() -> Generator[Endpoint]:
    require("openai", available=find_spec("openai") is not None, why="it is not installed")
    _Meaning.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Meaning)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}/v1"
        yield Endpoint(base_url=address, model="meaning-1", api_key=SecretStr("the-key"))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_an_endpoint_finds_what_shares_a_meaning_and_no_words(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    async with open_sqlite_memory(path, Scope()) as memory:
        await memory.learn(DURATIONS)
        await memory.learn(CHART)
        assert await memory.recall(GOAL_IN_OTHER_WORDS) == ()

    with an_endpoint() as endpoint:
        async with (
            open_endpoint_embedder(endpoint) as embedder,
            open_sqlite_memory(path, Scope(), embedder=embedder) as memory,
        ):
            (lesson,) = await memory.recall(GOAL_IN_OTHER_WORDS)

        assert "import re" in lesson.text
        assert {asked["model"] for asked in _Meaning.seen} == {"meaning-1"}
        assert {asked["path"] for asked in _Meaning.seen} == {"/v1/embeddings"}
        assert {asked["key"] for asked in _Meaning.seen} == {"Bearer the-key"}


async def test_without_its_endpoint_a_memory_still_knows_the_same_failure(tmp_path: Path) -> None:
    with an_endpoint() as endpoint:
        pass
    async with (
        open_endpoint_embedder(endpoint) as embedder,
        open_sqlite_memory(tmp_path / "memory.sqlite", Scope(), embedder=embedder) as memory,
    ):
        with pytest.raises(ModelUnavailableError):
            await embedder.embed(["a text"])
        await memory.learn(DURATIONS)

        assert len(await memory.recall(query_for(DURATIONS, "failure"))) == 1
        assert await memory.recall(query_for(DURATIONS, "plan")) == ()


@pytest.mark.parametrize(
    ("own", "openai", "sent"),
    [
        ("here", "elsewhere", "mine"),
        ("elsewhere", "here", "of-openai"),
        ("elsewhere", "elsewhere", "none"),
    ],
)
async def test_an_endpoint_is_sent_no_key_that_was_given_for_another_address(
    tmp_path: Path, own: str, openai: str, sent: str
) -> None:
    keys = {"ASSAY_API_KEY": "mine", "OPENAI_API_KEY": "of-openai"}
    with an_endpoint() as endpoint:
        places = {"here": endpoint.base_url, "elsewhere": "http://another-host.invalid/v1"}
        addresses = {"base_url": places[own], "base_urls": {"openai": places[openai]}}
        settings = Settings.model_validate(
            {
                "state_dir": tmp_path,
                "models": {"api_keys": keys, **addresses},
                "memory": {"embedding_model": "m", "embedding_url": endpoint.base_url},
            }
        )
        async with open_memory("all", settings, on_notice=pytest.fail) as memory:
            await memory.learn(DURATIONS)

    assert {asked["key"] for asked in _Meaning.seen} == {f"Bearer {sent}"}
