"""Who may use the MCP servers over HTTP, and whose workspace they get."""

import json
import socket
from collections.abc import Generator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import httpx2
import pytest

from assay.cli.main import run
from tests.support.leftovers import remove_engines
from tests.support.mcp_servers import (
    Served,
    environment,
    http_client,
    refusal,
    serve,
    values,
)


@dataclass(frozen=True, slots=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def assay(folder: Path, *words: str) -> Done:
    """Run a command that ends at once, in this process: a new one takes long to start."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in environment(folder).items():
            patch.setenv(name, value)
        code = run(["mcp", *words])
    return Done(code, out.getvalue(), err.getvalue())


def a_token(folder: Path, name: str) -> str:
    made = assay(folder, "token", name, "--json")
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)["token"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mcp")


@pytest.fixture(scope="module")
def ann(folder: Path) -> str:
    return a_token(folder, "ann")


@pytest.fixture(scope="module")
def bob(folder: Path) -> str:
    return a_token(folder, "bob")


@pytest.fixture(scope="module")
def served(folder: Path, ann: str, bob: str) -> Generator[Served]:
    assert ann != bob
    with serve(folder) as running:
        yield running
    remove_engines(folder / "runtime")


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer wrong", "Basic YWJj", "Bearer " + "x" * 5000, "Bearer é"]
)
@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
async def test_without_a_good_token_nothing_is_answered(
    served: Served, header: str, path: str
) -> None:
    headers = {"Authorization": header.encode("latin-1")} if header else {}
    async with httpx2.AsyncClient(headers=headers) as http:
        answer = await http.post(served.executor.removesuffix("/mcp") + path, json={})

    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert "refused a call" in (served.folder / "stderr").read_text()


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_a_token_has_one_workspace_in_both_servers_without_naming_it(
    served: Served, ann: str, mode: str
) -> None:
    async with (
        http_client(served.filesystem, token=ann, mode=mode) as files,
        http_client(served.executor, token=ann, mode=mode) as programs,
    ):
        await files.call_tool("sandbox_write_file", {"path": mode, "content": "seen"})
        result = await programs.call_tool("sandbox_run_command", {"command": f"cat {mode}"})

    assert values(result)["stdout"] == "seen"


async def test_the_handle_of_one_token_is_nothing_to_another(
    served: Served, ann: str, bob: str
) -> None:
    async with (
        http_client(served.filesystem, token=ann) as anns,
        http_client(served.filesystem, token=bob) as bobs,
    ):
        await anns.call_tool("sandbox_write_file", {"path": "secret", "content": "x"})
        mine = values(await anns.call_tool("sandbox_list_directory"))
        theirs = await bobs.call_tool(
            "sandbox_read_file", {"path": "secret", "workspace": mine["workspace"]}
        )
        own = values(await bobs.call_tool("sandbox_list_directory"))
        invented = await bobs.call_tool("sandbox_list_directory", {"workspace": "ws_invented"})

    assert "secret" in [entry["path"] for entry in mine["entries"]]
    assert "secret" not in [entry["path"] for entry in own["entries"]]
    # In the same words, so that nobody learns which handles there are.
    assert refusal(theirs) == refusal(invented)


async def test_a_session_cannot_be_taken_over_with_another_token(
    served: Served, ann: str, bob: str
) -> None:
    client = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    accept = {"Accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient(headers=accept) as http:
        begun = await http.post(
            served.executor, json=begin, headers={"Authorization": f"Bearer {ann}"}
        )
        taken = await http.post(
            served.executor,
            json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
            headers={
                "Authorization": f"Bearer {bob}",
                "Mcp-Session-Id": begun.headers["mcp-session-id"],
            },
        )

    assert begun.status_code == 200
    assert taken.status_code == 404


def test_tokens_are_kept_as_hashes_only(served: Served, ann: str) -> None:
    kept = served.folder / "state" / "assay" / "mcp-tokens"

    assert kept.stat().st_mode & 0o777 == 0o600
    assert ann not in kept.read_text()
    assert ann not in (served.folder / "stderr").read_text()


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    a_token(tmp_path, "ann")
    (tmp_path / "state" / "assay" / "mcp-tokens").chmod(0o644)

    done = assay(tmp_path, "serve", "executor", "--port", "0")

    assert done.returncode == 2
    assert "others can read or change it" in done.stderr
    assert "chmod 600" in done.stderr


def test_a_damaged_token_file_is_named_with_its_line(tmp_path: Path) -> None:
    a_token(tmp_path, "ann")
    kept = tmp_path / "state" / "assay" / "mcp-tokens"
    kept.write_text(kept.read_text() + "bob nothing\n")

    done = assay(tmp_path, "serve", "executor", "--port", "0")

    assert done.returncode == 2
    assert "line 2" in done.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104 - which must be refused
def test_other_machines_are_not_served_without_tokens(tmp_path: Path, host: str) -> None:
    done = assay(tmp_path, "serve", "executor", "--host", host, "--port", "0")

    assert done.returncode == 2
    assert "every client that reaches" in done.stderr
    assert "assay mcp token" in done.stderr


def test_other_machines_are_not_served_without_a_name(tmp_path: Path) -> None:
    a_token(tmp_path, "ann")

    done = assay(tmp_path, "serve", "executor", "--host", "0.0.0.0", "--port", "0")  # noqa: S104 - refused

    assert done.returncode == 2
    assert "mcp.allowed_hosts" in done.stderr


def test_tokens_are_listed_removed_and_not_made_twice(tmp_path: Path) -> None:
    a_token(tmp_path, "ann")
    a_token(tmp_path, "bob")

    again = assay(tmp_path, "token", "ann")
    removed = assay(tmp_path, "token", "bob", "--remove", "--yes")
    listed = assay(tmp_path, "token")
    unknown = assay(tmp_path, "token", "bob", "--remove", "--yes")
    wrong = assay(tmp_path, "token", "a b")

    assert (again.returncode, unknown.returncode, wrong.returncode) == (2, 2, 2)
    assert removed.returncode == 0
    assert listed.stdout == "ann\n"


def test_a_taken_port_is_said_to_be(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = assay(tmp_path, "serve", "executor", "--port", port)

    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "--port" in done.stderr
