"""Other people's programs with our MCP servers: the Agents SDK, and configurations of clients."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from assay.contracts.errors import UsageError
from assay.mcp.client_configs import ClientName, configuration
from tests.support.mcp_servers import FILE_TOOLS, PROGRAM_TOOLS, environment, serve, values
from tests.support.scripted_chat import ScriptedChat, Turn, serve_script

EXAMPLE = Path(__file__).parents[2] / "examples" / "openai_agents_sdk.py"
EVERY_TOOL: list[Turn] = [
    ("sandbox_make_directory", {"path": "d"}),
    ("sandbox_write_file", {"path": "d/fib.py", "content": "print(sum(range(10)))"}),
    ("sandbox_read_file", {"path": "d/fib.py"}),
    ("sandbox_list_directory", {"path": "d"}),
    ("sandbox_run_command", {"command": "python3 d/fib.py"}),
    ("sandbox_run_python", {"code": "print(6 * 7)"}),
    ("sandbox_remove_path", {"path": "d"}),
    "It prints 45.",
]


def run_example(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLE, "Write fib.py and run it", *words],
        env={**environment(folder), "OPENAI_API_KEY": "none", **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def assert_every_tool_was_used(done: subprocess.CompletedProcess[str], model: ScriptedChat) -> None:
    assert done.returncode == 0, done.stderr
    assert done.stdout == "It prints 45.\n"
    offered = {tool["function"]["name"] for tool in model.asked[0]["tools"]}
    assert offered == FILE_TOOLS | PROGRAM_TOOLS
    answers = model.answers_of_tools()
    assert len(answers) == len(EVERY_TOOL) - 1
    assert "print(sum(range(10)))" in answers[2]
    assert "45" in answers[4]
    assert "42" in answers[5]


def test_an_agent_of_the_agents_sdk_uses_every_tool_over_stdio(tmp_path: Path) -> None:
    with serve_script(EVERY_TOOL) as model:
        done = run_example(tmp_path, "--base-url", model.base_url)

    assert_every_tool_was_used(done, model)


def test_an_agent_of_the_agents_sdk_uses_every_tool_over_http(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "assay", "mcp", "token", "agent"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    with serve(tmp_path) as served, serve_script(EVERY_TOOL) as model:
        done = run_example(
            tmp_path,
            *("--base-url", model.base_url, "--url", served.filesystem, "--url", served.executor),
            ASSAY_MCP_TOKEN=made.stdout.strip(),
        )

    assert_every_tool_was_used(done, model)


def test_an_agent_of_the_agents_sdk_needs_no_token_on_its_own_machine(tmp_path: Path) -> None:
    with (
        serve(tmp_path, ASSAY_MCP__MAX_WORKSPACES="1") as served,
        serve_script(EVERY_TOOL) as model,
    ):
        done = run_example(
            tmp_path,
            *("--base-url", model.base_url, "--url", served.filesystem, "--url", served.executor),
        )

    assert_every_tool_was_used(done, model)


def stdio_parameters(client: ClientName) -> dict[str, Any]:
    """What a client would read from its configuration."""
    text = configuration(client)
    match client:
        case "claude-desktop" | "cursor":
            return json.loads(text)["mcpServers"]["assay"]
        case "vscode":
            found = json.loads(text)["servers"]["assay"]
            assert found.pop("type") == "stdio"
            return found
        case "openai-agents":
            names: dict[str, Any] = {}
            exec(text, names)  # noqa: S102 - our own text, as a person would paste it
            parameters = names["server"].params
            return {"command": parameters.command, "args": parameters.args}


@pytest.mark.parametrize("client", ["cursor", "vscode", "openai-agents"])
def test_every_client_is_told_to_start_the_same_thing(client: ClientName) -> None:
    assert stdio_parameters(client) == stdio_parameters("claude-desktop")


async def test_what_clients_are_told_to_start_is_a_server(tmp_path: Path) -> None:
    parameters = StdioServerParameters(
        **stdio_parameters("claude-desktop"), env=environment(tmp_path)
    )
    async with Client(parameters) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == (
            FILE_TOOLS | PROGRAM_TOOLS
        )
        assert values(await client.call_tool("sandbox_list_directory"))["entries"] == []


@pytest.mark.parametrize("token", [False, True])
def test_clients_are_told_where_running_servers_are(token: bool) -> None:  # noqa: FBT001 - a parameter
    urls = {"http://127.0.0.1:7101/mcp", "http://127.0.0.1:7102/mcp"}
    cursor = json.loads(configuration("cursor", http=True, token=token))["mcpServers"]
    vscode = json.loads(configuration("vscode", http=True, token=token))
    agents = configuration("openai-agents", http=True, token=token)
    compile(agents, "agents", "exec")

    assert {each["url"] for each in cursor.values()} == urls
    assert {each["url"] for each in vscode["servers"].values()} == urls
    assert all(url in agents for url in urls)
    assert ("headers" in cursor["assay-executor"]) is token
    assert ("inputs" in vscode) is token
    assert ("ASSAY_MCP_TOKEN" in agents) is token


def test_claude_desktop_has_no_way_to_reach_a_running_server() -> None:
    with pytest.raises(UsageError, match="starts its local servers itself"):
        configuration("claude-desktop", http=True)
