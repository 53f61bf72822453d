"""Tokens that are added or removed count without a restart, for executors and MCP servers."""

from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from assay.auth.tokens import TokenFile, executor_tokens
from assay.contracts.errors import UsageError
from assay.mcp.serve import TokenGuard


def test_an_executor_knows_new_tokens_and_forgets_removed_ones(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    read = executor_tokens(path)
    alice = read.add("alice")
    assert len(read.current()) == 1

    bob = executor_tokens(path).add("bob")
    assert (read.current().owner_of(alice), read.current().owner_of(bob)) == ("alice", "bob")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[1])
    assert (read.current().owner_of(alice), read.current().owner_of(bob)) == (None, "bob")


@pytest.mark.parametrize("how", ["removed", "damaged", "open to others"])
def test_a_file_that_can_no_longer_be_used_lets_nobody_in(how: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    read = executor_tokens(path)
    token = read.add("alice")
    assert read.current().owner_of(token) == "alice"

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
        executor_tokens(tmp_path / "missing").read()


def test_comments_stay_when_a_token_is_added_or_removed(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    tokens = executor_tokens(path)
    tokens.add("alice")
    path.write_text("# kept\n" + path.read_text())
    tokens.add("bob")
    tokens.remove("alice")

    assert path.read_text().startswith("# kept\nbob sha256:")
    with pytest.raises(UsageError, match="no token for 'alice'"):
        tokens.remove("alice")


async def test_an_mcp_server_asks_for_tokens_from_the_first_on_and_to_the_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens"
    tokens = TokenFile(path, command="assay mcp token")
    guard = TokenGuard({1: _accept}, tokens, trouble=str)
    before = await _status(guard)

    token = tokens.add("ann")
    without, with_it = await _status(guard), await _status(guard, token)
    tokens.remove("ann")

    assert (before, without, with_it) == (202, 401, 202)
    assert (await _status(guard), await _status(guard, token)) == (401, 401)


async def _accept(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 202, "headers": []})


async def _status(guard: TokenGuard, token: str = "") -> int:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    scope = {"type": "http", "path": "/mcp", "method": "POST", "headers": headers}
    await guard({**scope, "client": ("test", 1), "server": ("test", 1)}, receive, send)
    return sent[0]["status"]
