"""Our MCP servers over HTTP, as the official client sees them."""

import base64
import re
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client

from tests.support.eventually import eventually
from tests.support.leftovers import records_in, remove_engines
from tests.support.mcp_servers import (
    FILE_TOOLS,
    PROGRAM_TOOLS,
    Served,
    http_client,
    refusal,
    serve,
    values,
    words,
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("mcp")
    with serve(folder, ASSAY_MCP__FILE_BYTES="300000", ASSAY_MCP__MAX_WORKSPACES="60") as running:
        yield running
    remove_engines(folder / "runtime")


async def test_both_servers_list_their_tools_with_schemas_of_what_goes_in_and_out(
    served: Served,
) -> None:
    async with Client(served.filesystem) as files, Client(served.executor) as programs:
        file_tools = (await files.list_tools()).tools
        program_tools = (await programs.list_tools()).tools

    assert {tool.name for tool in file_tools} == FILE_TOOLS
    assert {tool.name for tool in program_tools} == PROGRAM_TOOLS
    for tool in (*file_tools, *program_tools):
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema is not None
        assert "workspace" in tool.output_schema["properties"]


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_every_tool_can_be_called_in_both_eras_of_the_protocol(
    served: Served, mode: str
) -> None:
    async with (
        http_client(served.filesystem, mode=mode) as files,
        http_client(served.executor, mode=mode) as programs,
    ):
        written = values(
            await files.call_tool(
                "sandbox_write_file", {"path": "a/b.txt", "content": "hällo", "workspace": "new"}
            )
        )
        here = {"workspace": written["workspace"]}
        made = values(await files.call_tool("sandbox_make_directory", {"path": "c/d", **here}))
        listed = values(await files.call_tool("sandbox_list_directory", {"path": "a", **here}))
        read = values(await files.call_tool("sandbox_read_file", {"path": "a/b.txt", **here}))
        ran = values(
            await programs.call_tool("sandbox_run_command", {"command": "cat a/b.txt", **here})
        )
        computed = values(
            await programs.call_tool("sandbox_run_python", {"code": "print(6 * 7)", **here})
        )
        await files.call_tool("sandbox_remove_path", {"path": "a", **here})
        left = values(await files.call_tool("sandbox_list_directory", {"recursive": True, **here}))

    assert written["size_bytes"] == len("hällo".encode())
    assert made["path"] == "c/d"
    assert [entry["path"] for entry in listed["entries"]] == ["a/b.txt"]
    assert (read["content"], read["encoding"]) == ("hällo", "utf-8")
    assert (ran["exit_code"], ran["stdout"], ran["reason"]) == (0, "hällo", "completed")
    assert computed["stdout"] == "42\n"
    assert [entry["path"] for entry in left["entries"]] == ["c", "c/d"]


async def test_a_failing_program_is_an_answer_with_all_its_values(served: Served) -> None:
    async with Client(served.executor) as programs:
        result = await programs.call_tool(
            "sandbox_run_command", {"argv": ["bash", "-c", "echo out; echo err >&2; exit 3"]}
        )

    ran = values(result)
    assert (ran["exit_code"], ran["stdout"], ran["stderr"]) == (3, "out\n", "err\n")
    assert ran["duration_s"] > 0
    assert (ran["truncated"], ran["denials"], ran["signal"]) == (False, [], None)
    assert "exit code 3" in words(result)


async def test_a_program_that_takes_too_long_is_ended_with_its_output_so_far(
    served: Served,
) -> None:
    async with Client(served.executor) as programs:
        result = await programs.call_tool(
            "sandbox_run_command", {"command": "echo begun; sleep 60", "timeout_s": 0.5}
        )

    ran = values(result)
    assert (ran["reason"], ran["stdout"], ran["exit_code"]) == ("timed_out", "begun\n", None)


async def test_a_flood_of_output_is_cut_and_said_to_be(served: Served) -> None:
    async with Client(served.executor) as programs:
        result = await programs.call_tool("sandbox_run_python", {"code": "print('x' * 1_000_000)"})

    ran = values(result)
    assert ran["truncated"] is True
    assert len(ran["stdout"]) == 1 << 18
    assert len(words(result)) < 25_000


async def test_binary_files_go_in_and_out_as_base64(served: Served) -> None:
    content = bytes(range(256)) * 4
    async with Client(served.filesystem) as files:
        written = values(
            await files.call_tool(
                "sandbox_write_file",
                {"path": "b.bin", "content": base64.b64encode(content).decode(), "base64": True},
            )
        )
        here = {"workspace": written["workspace"], "path": "b.bin"}
        read = values(await files.call_tool("sandbox_read_file", {**here, "base64": True}))
        as_text = refusal(await files.call_tool("sandbox_read_file", here))
        wrong = refusal(
            await files.call_tool(
                "sandbox_write_file", {**here, "content": "no base64!", "base64": True}
            )
        )

    assert base64.b64decode(read["content"]) == content
    assert read["encoding"] == "base64"
    assert "base64" in as_text
    assert "not base64" in wrong


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/passwd", "a/../../x", "/proc/self/environ", "", "a\0b", "x" * 5000]
)
@pytest.mark.parametrize("tool", ["sandbox_read_file", "sandbox_remove_path"])
async def test_paths_that_lead_out_are_refused(served: Served, path: str, tool: str) -> None:
    async with Client(served.filesystem) as files:
        await _refused(files, tool, {"path": path})


async def test_links_that_lead_out_are_refused(served: Served) -> None:
    async with Client(served.filesystem) as files, Client(served.executor) as programs:
        ran = values(
            await programs.call_tool(
                "sandbox_run_command", {"command": "ln -s / out; ln -s /etc/passwd p"}
            )
        )
        here = {"workspace": ran["workspace"]}
        for path in ("out/etc/passwd", "p"):
            await _refused(files, "sandbox_read_file", {"path": path, **here})
        await _refused(files, "sandbox_write_file", {"path": "out/tmp/x", "content": "x", **here})


async def _refused(files: Client, tool: str, arguments: dict[str, Any]) -> None:
    assert refusal(await files.call_tool(tool, arguments))


async def test_clients_have_workspaces_of_their_own(served: Served) -> None:
    async with (
        http_client(served.filesystem, mode="legacy") as one,
        http_client(served.filesystem, mode="legacy") as other,
    ):
        await one.call_tool("sandbox_write_file", {"path": "mine", "content": "x"})
        mine = values(await one.call_tool("sandbox_list_directory"))
        others = values(await other.call_tool("sandbox_list_directory"))

    assert [entry["path"] for entry in mine["entries"]] == ["mine"]
    assert others["entries"] == []
    assert mine["workspace"] != others["workspace"]


async def test_a_session_header_of_another_client_opens_nothing(served: Served) -> None:
    async with httpx2.AsyncClient() as http:
        begun = await http.post(served.filesystem, json=_initialize(), headers=_ACCEPT)
        session = {"Mcp-Session-Id": begun.headers["mcp-session-id"]}
        called = await http.post(served.filesystem, json=_list(), headers={**_ACCEPT, **session})
        owned = re.search(r'"workspace": ?"(ws_[^"]+)"', called.text)
    async with http_client(served.filesystem, headers=session, mode="2026-07-28") as thief:
        found = values(await thief.call_tool("sandbox_list_directory"))

    # The header says nothing in this era: the workspace of the session stays its own.
    assert owned is not None, called.text
    assert found["workspace"] != owned[1]


async def test_calls_without_a_token_that_stand_alone_share_the_workspace_of_their_user(
    served: Served,
) -> None:
    async with (
        http_client(served.filesystem, mode="2026-07-28") as files,
        http_client(served.executor, mode="2026-07-28") as programs,
    ):
        await files.call_tool("sandbox_write_file", {"path": "own.py", "content": "print(6 * 7)"})
        ran = values(await programs.call_tool("sandbox_run_command", {"command": "python3 own.py"}))
        apart = values(await files.call_tool("sandbox_list_directory", {"workspace": "new"}))
        here = values(await files.call_tool("sandbox_list_directory"))

    assert ran["stdout"] == "42\n"
    assert apart["entries"] == []
    assert here["workspace"] == ran["workspace"] != apart["workspace"]


async def test_clients_behind_a_proxy_do_not_share_a_workspace(served: Served) -> None:
    forwarded = {"X-Forwarded-For": "192.0.2.7"}
    async with http_client(served.filesystem, headers=forwarded, mode="2026-07-28") as one:
        first = values(await one.call_tool("sandbox_list_directory"))
        second = values(await one.call_tool("sandbox_list_directory"))

    assert first["workspace"] != second["workspace"]


async def test_the_servers_answer_at_their_bare_address_too(served: Served) -> None:
    async with http_client(served.executor.removesuffix("/mcp")) as programs:
        listed = (await programs.list_tools()).tools

    assert {tool.name for tool in listed} == PROGRAM_TOOLS


async def test_the_health_of_a_server_can_be_asked_without_a_token(served: Served) -> None:
    async with httpx2.AsyncClient() as http:
        answer = await http.get(served.executor.removesuffix("/mcp") + "/healthz")

    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("handle", ["ws_AAAAAAAAAAAAAAAAAAAAAAAA", "stdio", "../x"])
async def test_a_handle_that_was_not_given_out_is_refused(served: Served, handle: str) -> None:
    async with Client(served.filesystem) as files:
        result = await files.call_tool("sandbox_list_directory", {"workspace": handle})

    assert "no such workspace" in refusal(result)


async def test_arguments_that_are_too_large_are_refused(served: Served) -> None:
    async with Client(served.filesystem) as files:
        result = await files.call_tool(
            "sandbox_write_file", {"path": "big", "content": "x" * 300_001}
        )
        assert "300000 at most" in refusal(result)
    async with httpx2.AsyncClient() as http:
        answer = await http.post(served.filesystem, content=b"x" * 600_000, headers=_ACCEPT)
    assert answer.status_code == 413


async def test_a_file_that_is_too_large_is_not_read(served: Served) -> None:
    async with Client(served.filesystem) as files, Client(served.executor) as programs:
        ran = values(
            await programs.call_tool(
                "sandbox_run_command", {"command": "head -c 400000 /dev/zero > big"}
            )
        )
        result = await files.call_tool(
            "sandbox_read_file", {"path": "big", "base64": True, "workspace": ran["workspace"]}
        )

    assert "300000" in refusal(result)


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("sandbox_run_command", {}, "command"),
        ("sandbox_run_command", {"command": "ls", "argv": ["ls"]}, "either"),
        ("sandbox_run_command", {"command": "ls", "cwd": "../.."}, "workspace"),
        ("sandbox_run_command", {"command": "ls", "timeout_s": -1}, "timeout_s"),
        ("sandbox_run_python", {"code": 3}, "code"),
        ("sandbox_run_python", {"code": "1", "colour": "red"}, "colour"),
    ],
)
async def test_a_wrong_call_is_told_what_is_wrong(
    served: Served, tool: str, arguments: dict[str, Any], named: str
) -> None:
    async with Client(served.executor) as programs:
        assert named in refusal(await programs.call_tool(tool, arguments))


async def test_many_calls_at_once_are_all_answered_rightly(served: Served) -> None:
    found: dict[int, str] = {}
    async with Client(served.executor) as programs:
        first = values(await programs.call_tool("sandbox_run_python", {"code": "print()"}))
        here = {"workspace": first["workspace"]}

        async def square(number: int) -> None:
            code = f"print({number} ** 2)"
            result = await programs.call_tool("sandbox_run_python", {"code": code, **here})
            found[number] = values(result)["stdout"].strip()

        async with anyio.create_task_group() as tasks:
            for number in range(24):
                tasks.start_soon(square, number)

    assert found == {number: str(number**2) for number in range(24)}


async def test_the_first_calls_of_a_session_at_once_land_in_one_workspace(served: Served) -> None:
    handles: list[str] = []
    async with http_client(served.filesystem, mode="legacy") as files:

        async def look() -> None:
            handles.append(values(await files.call_tool("sandbox_list_directory"))["workspace"])

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(look)

    assert len(handles) == 5
    assert len(set(handles)) == 1


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_a_long_run_reports_progress_with_its_output(served: Served, mode: str) -> None:
    reported: list[tuple[float, str]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        del total
        reported.append((progress, message or ""))

    async with http_client(served.executor, mode=mode) as programs:
        await programs.call_tool(
            "sandbox_run_command",
            {"command": "echo begun; sleep 1.3; echo ended"},
            progress_callback=hear,
        )

    assert any("begun" in message for _, message in reported)
    assert [progress for progress, _ in reported] == sorted({each for each, _ in reported})


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_cancelling_a_call_kills_its_program(served: Served, mode: str) -> None:
    async with (
        http_client(served.executor, mode=mode) as programs,
        Client(served.filesystem) as files,
    ):
        first = values(await programs.call_tool("sandbox_run_command", {"command": "true"}))
        here = {"workspace": first["workspace"]}
        command = "touch begun; while true; do date +%N > beat; sleep 0.05; done"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                programs.call_tool, "sandbox_run_command", {"command": command, **here}
            )
            await _until_there(files, "beat", here)
            tasks.cancel_scope.cancel()
        # Whoever cancels does not wait for the server; but the beat must stop.
        with anyio.fail_after(60):
            while await _read(files, "beat", here) != await _read_later(files, "beat", here):
                pass


async def _until_there(files: Client, path: str, here: dict[str, Any]) -> None:
    with anyio.fail_after(60):
        while (await files.call_tool("sandbox_read_file", {"path": path, **here})).is_error:  # noqa: ASYNC110 - it happens in another process
            await anyio.sleep(0.02)


async def _read(files: Client, path: str, here: dict[str, Any]) -> str:
    return words(await files.call_tool("sandbox_read_file", {"path": path, **here}))


async def _read_later(files: Client, path: str, here: dict[str, Any]) -> str:
    await anyio.sleep(0.3)
    return await _read(files, path, here)


_ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def _initialize() -> dict[str, Any]:
    client = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


def _list() -> dict[str, Any]:
    params = {"name": "sandbox_list_directory", "arguments": {}}
    return {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"MCP-Protocol-Version": "2026-07-28", "Origin": "https://evil.example"}, 403),
        ({"MCP-Protocol-Version": "2026-07-28", "Host": "evil.example"}, 421),
    ],
)
async def test_pages_of_a_browser_are_refused(
    served: Served, headers: dict[str, str], status: int
) -> None:
    async with httpx2.AsyncClient() as http:
        answer = await http.post(
            served.executor, json=_initialize(), headers={**_ACCEPT, **headers}
        )

    assert answer.status_code == status


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"jsonrpc": "2.0"}', b"\xff\xfe", b"[" * 9000]
)
async def test_nonsense_is_answered_with_an_error(served: Served, body: bytes) -> None:
    async with httpx2.AsyncClient() as http:
        answer = await http.post(served.executor, content=body, headers=_ACCEPT)
        after = await http.post(served.executor, json=_initialize(), headers=_ACCEPT)

    assert 400 <= answer.status_code < 500
    assert after.status_code == 200


async def test_workspaces_end_when_nobody_uses_them_and_their_number_is_limited(
    tmp_path: Path,
) -> None:
    with serve(
        tmp_path, which="filesystem", ASSAY_MCP__IDLE_S="1", ASSAY_MCP__MAX_WORKSPACES="2"
    ) as served:
        new = {"workspace": "new"}
        async with Client(served.filesystem) as files:
            one = values(await files.call_tool("sandbox_list_directory", new))
            two = values(await files.call_tool("sandbox_list_directory", new))
            three = values(await files.call_tool("sandbox_list_directory", new))
            oldest = await files.call_tool("sandbox_list_directory", _in(one))
            # Each look is a use: only one that is left alone ends.
            with anyio.fail_after(30):
                while not (await files.call_tool("sandbox_list_directory", _in(two))).is_error:  # noqa: ASYNC110 - it happens in another process
                    await anyio.sleep(1.2)
            idle = await files.call_tool("sandbox_list_directory", _in(three))

    assert "no such workspace" in refusal(oldest)
    assert "no such workspace" in refusal(idle)


def _in(answer: dict[str, Any]) -> dict[str, Any]:
    return {"workspace": answer["workspace"]}


@pytest.mark.slow
async def test_a_server_that_is_told_twice_to_stop_kills_what_runs_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    running = anyio.Event()

    async def hear(*progress: object) -> None:
        del progress
        running.set()

    async def hang(programs: Client) -> None:
        with suppress(Exception):  # However the connection ends is all right here.
            await programs.call_tool(
                "sandbox_run_command", {"command": "sleep 60"}, progress_callback=hear
            )

    with serve(tmp_path) as served, anyio.fail_after(60):
        async with (
            http_client(served.executor, mode="legacy") as programs,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(hang, programs)
            await running.wait()
            served.process.terminate()
            served.process.terminate()
            assert await eventually(lambda: served.process.poll() is not None)
            tasks.cancel_scope.cancel()

    assert served.process.returncode == 0
    assert records_in(tmp_path / "runtime") == []
    assert "Traceback" not in (tmp_path / "stderr").read_text()


async def test_a_call_that_runs_when_the_server_is_told_to_stop_is_answered(
    tmp_path: Path,
) -> None:
    answers: list[dict[str, Any]] = []
    with serve(tmp_path) as served, anyio.fail_after(60):
        told = iter([served.process.terminate])

        async def stop(*progress: object) -> None:
            del progress
            for tell in told:  # Only the first time.
                tell()

        async with http_client(served.executor) as programs:
            await programs.list_tools()  # By which the client checks the answer, after the end.
            result = await programs.call_tool(
                "sandbox_run_command", {"command": "sleep 1; echo done"}, progress_callback=stop
            )
            answers.append(values(result))
        assert await eventually(lambda: served.process.poll() is not None)

    assert answers[0]["stdout"] == "done\n"
    assert served.process.returncode == 0


def test_what_is_announced_is_where_the_servers_are(served: Served) -> None:
    said = (served.folder / "stderr").read_text()

    assert f"filesystem: {served.filesystem}" in said
    assert f"executor: {served.executor}" in said
