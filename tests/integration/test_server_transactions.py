"""How often a chat turn writes to the database."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.server.api.app import create_app, guarded
from assay.server.api.monitoring import Metrics
from assay.server.app_state import ServerState, open_server
from assay.server.db.database import Database
from assay.server.db.models import AuditPage
from assay.server.errors import RequestRejectedError
from assay.settings.load import load_settings
from tests.support.served import script

CODE = "```python\nprint(6 * 7)\n```"


@asynccontextmanager
async def client_of(
    folder: Path, lines: list[dict[str, Any]]
) -> AsyncGenerator[tuple[httpx.AsyncClient, ServerState]]:
    model = script(folder / "script.jsonl", lines)
    settings = load_settings(
        {"models": {"default": model}, "sandbox": {"pool_size": 0}, "state_dir": folder / "state"}
    )
    async with open_server(settings, open_to_local=True) as server:
        app = guarded(create_app(server, Metrics()), lambda _: None)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=60
        ) as client:
            yield client, server


def reject(*_: object) -> None:
    raise RequestRejectedError("nothing is left", why="quota-exceeded")


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the kinds of transactions that are asked for."""
    found: list[str] = []
    transact, post = Database.transact, Database.post

    async def counted(self: Database, work: Callable[..., Any]) -> Any:
        found.append("awaited")
        return await transact(self, work)

    def counted_post(self: Database, work: Callable[..., Any]) -> None:
        found.append("posted")
        post(self, work)

    monkeypatch.setattr(Database, "transact", counted)
    monkeypatch.setattr(Database, "post", counted_post)
    return found


async def test_a_chat_turn_makes_two_transactions(
    tmp_path: Path, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Request counts are stored for all requests together.
    monkeypatch.setattr("assay.server.app_state._FLUSH_S", 600)
    lines = [{"text": CODE}, {"text": "It is 42."}, {"text": "Again."}]
    async with client_of(tmp_path, lines) as (client, server):
        transactions.clear()
        first = (await client.post("/chat", json={"message": "6 * 7?"})).json()
        assert first["answer"] == "It is 42."
        assert transactions == ["awaited", "awaited"]
        entries = await server.store.audit(AuditPage())
        assert sorted(entry.action for entry in entries) == [
            "cell.run",
            "session.create",
            "turn.run",
        ]
        transactions.clear()
        again = await client.post(
            "/chat", json={"message": "again", "session_id": first["session_id"]}
        )
        assert again.json()["answer"] == "Again."
        assert transactions == ["awaited", "awaited"]


async def test_a_session_whose_first_turn_is_rejected_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(tmp_path, [{"text": "hello"}]) as (client, server):
        monkeypatch.setattr("assay.server.services.chat_service.reserve", reject)
        refused = await client.post("/chat", json={"message": "hello"})
        assert refused.status_code == 429
        assert (await client.get("/v1/sessions")).json() == {"sessions": []}
        assert server.chats.open_count == 0
        assert list((tmp_path / "state").glob("users/*/sessions/*")) == []
