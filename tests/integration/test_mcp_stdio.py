"""Our MCP servers over standard input and output, started by the client."""

import base64
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from assay.cli.main import run
from tests.support.eventually import eventually
from tests.support.leftovers import records_in
from tests.support.mcp_servers import (
    ASSAY,
    FILE_TOOLS,
    PROGRAM_TOOLS,
    environment,
    refusal,
    stdio_client,
    values,
    words,
)


async def test_every_tool_is_listed_and_called_in_one_workspace(tmp_path: Path) -> None:
    async with stdio_client(tmp_path) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        await client.call_tool("sandbox_make_directory", {"path": "d"})
        await client.call_tool("sandbox_write_file", {"path": "d/f.py", "content": "print(6 * 7)"})
        read = await client.call_tool("sandbox_read_file", {"path": "d/f.py"})
        ran = values(await client.call_tool("sandbox_run_command", {"command": "python3 d/f.py"}))
        noise = {"command": r"printf '\377\000'; printf well >&2"}
        binary = values(await client.call_tool("sandbox_run_command", noise))
        python = values(
            await client.call_tool("sandbox_run_python", {"code": "print(open('d/f.py').read())"})
        )
        await client.call_tool("sandbox_remove_path", {"path": "d"})
        left = values(await client.call_tool("sandbox_list_directory"))
        outside = await client.call_tool("sandbox_read_file", {"path": "../x"})

    assert listed == FILE_TOOLS | PROGRAM_TOOLS
    # There is nobody else: a model need not be told of handles.
    assert words(read) == "print(6 * 7)"
    assert (ran["stdout"], python["stdout"]) == ("42\n", "print(6 * 7)\n")
    assert (ran["stdout_base64"], binary["stderr_base64"]) == (None, None)
    assert base64.b64decode(binary["stdout_base64"]) == b"\xff\x00"
    assert left["entries"] == []
    assert "workspace" in refusal(outside)
    assert await eventually(lambda: records_in(tmp_path / "runtime") == [])


async def test_progress_and_cancellation_work(tmp_path: Path) -> None:
    heard = anyio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        if "begun" in (message or ""):
            heard.set()

    async with stdio_client(tmp_path, "executor") as client:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(
                    client.call_tool,
                    "sandbox_run_command",
                    {"command": "echo begun; sleep 60"},
                    None,
                    hear,
                )
                await heard.wait()
                tasks.cancel_scope.cancel()
            # Every execution has the sandbox's processes to itself; none of them is left.
            after = await client.call_tool("sandbox_run_command", {"command": "echo after"})

    assert values(after)["stdout"] == "after\n"


def started(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*ASSAY, "mcp", "serve", "executor", "--stdio", "--verbose"],
        env=environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def message(method: str, number: int | None = None, **params: Any) -> bytes:
    fields: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    if number is not None:
        fields["id"] = number
    return json.dumps(fields).encode() + b"\n"


BEGIN = message(
    "initialize",
    1,
    protocolVersion="2025-06-18",
    capabilities={},
    clientInfo={"name": "test", "version": "1"},
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_though_nobody_writes_to_it(tmp_path: Path, number: int) -> None:
    process = started(tmp_path)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(BEGIN)
    process.stdin.flush()
    answered = json.loads(process.stdout.readline())

    process.send_signal(number)
    out, err = process.communicate(timeout=60)

    assert answered["id"] == 1
    assert process.returncode == 0, err
    assert out == b""
    assert records_in(tmp_path / "runtime") == []


def test_without_a_client_it_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [*ASSAY, "mcp", "serve", "executor", "--stdio"],
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, b""), done.stderr


def test_only_the_protocol_is_on_its_output(tmp_path: Path) -> None:
    process = started(tmp_path)
    said = b"\n".join(
        [
            BEGIN.strip(),
            message("notifications/initialized").strip(),
            b"nonsense",
            b"",
            message(
                "tools/call", 2, name="sandbox_run_command", arguments={"command": "echo hello"}
            ),
        ]
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(said)
    process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for _ in range(2)]
    out, err = process.communicate(timeout=60)

    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[1]["result"]["structuredContent"]["stdout"] == "hello\n"
    assert out == b""
    assert process.returncode == 0, err


def test_a_line_without_an_end_is_passed_over_and_not_kept(tmp_path: Path) -> None:
    process = started(tmp_path)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"x" * (16 << 20) + b"\n" + BEGIN)
    process.stdin.flush()
    while (answer := json.loads(process.stdout.readline())).get("id") != 1:
        assert "error" in answer
    process.communicate(timeout=60)

    assert answer["result"]["serverInfo"]["name"] == "assay-executor"


def test_addresses_make_no_sense_over_stdio(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mcp", "serve", "all", "--stdio", "--port", "1"]) == 2
    assert "--stdio has no address" in capsys.readouterr().err


async def test_a_client_that_dies_takes_the_server_and_its_sandbox_along(tmp_path: Path) -> None:
    process = started(tmp_path)
    assert process.stdin is not None
    process.stdin.write(
        BEGIN
        + message("notifications/initialized")
        + message("tools/call", 2, name="sandbox_run_command", arguments={"command": "sleep 60"})
    )
    process.stdin.flush()
    assert await eventually(lambda: bool(records_in(tmp_path / "runtime")))

    process.stdin.close()

    assert await eventually(lambda: process.poll() is not None)
    assert records_in(tmp_path / "runtime") == []
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    assert process.returncode == 0


async def test_a_client_that_is_killed_during_a_call_leaves_no_traceback(tmp_path: Path) -> None:
    process = started(tmp_path)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(
        BEGIN
        + message("notifications/initialized")
        + message("tools/call", 2, name="sandbox_run_command", arguments={"command": "sleep 0.3"})
    )
    process.stdin.flush()
    process.stdout.readline()
    # As the kernel does it: nobody reads any more, and the answer cannot be sent.
    process.stdout.close()

    assert await eventually(lambda: process.poll() is not None, within_s=60)
    _, err = process.communicate(timeout=60)
    assert b"the client is gone" in err
    assert b"Traceback" not in err
    assert b"defect" not in err
    assert records_in(tmp_path / "runtime") == []
