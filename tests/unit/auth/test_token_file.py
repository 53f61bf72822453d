"""Tokens that are added or removed count without a restart, for executors and MCP servers."""

from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from assay.auth.tokens import Reread, Tokens, add_token, read_tokens
from assay.contracts.errors import UsageError
from assay.mcp import tokens as mcp_tokens
from assay.mcp.serve import Gate


def test_an_executor_knows_new_tokens_and_forgets_removed_ones(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    alice = add_token(path, "alice")
    read = Reread(path, read_tokens, nothing=Tokens({}))

    bob = add_token(path, "bob")
    assert (read.current().owner_of(alice), read.current().owner_of(bob)) == ("alice", "bob")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[1])
    assert (read.current().owner_of(alice), read.current().owner_of(bob)) == (None, "bob")


@pytest.mark.parametrize("how", ["removed", "damaged", "open to others"])
def test_a_file_that_can_no_longer_be_used_lets_nobody_in(how: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    token = add_token(path, "alice")
    read = Reread(path, read_tokens, nothing=Tokens({}))

    match how:
        case "removed":
            path.unlink()
        case "damaged":
            path.write_text("alice\n")
        case _:
            path.chmod(0o644)

    assert read.current().owner_of(token) is None


def test_a_file_that_cannot_be_used_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        Reread(tmp_path / "missing", read_tokens, nothing=Tokens({}))


async def test_an_mcp_server_asks_for_tokens_from_the_first_on_and_to_the_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens"
    tokens = Reread(path, mcp_tokens.load_tokens, nothing=mcp_tokens.Tokens({}))
    gate = Gate({1: _accept}, tokens, trouble=str)
    before = await _status(gate)

    token = mcp_tokens.add_token(path, "ann")
    without, with_it = await _status(gate), await _status(gate, token)
    mcp_tokens.remove_token(path, "ann")

    assert (before, without, with_it) == (202, 401, 202)
    assert (await _status(gate), await _status(gate, token)) == (401, 401)


async def _accept(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 202, "headers": []})


async def _status(gate: Gate, token: str = "") -> int:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    scope = {"type": "http", "path": "/mcp", "method": "POST", "headers": headers}
    await gate({**scope, "client": ("test", 1), "server": ("test", 1)}, receive, send)
    return sent[0]["status"]
