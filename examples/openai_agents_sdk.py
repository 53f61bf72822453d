"""Run an agent of the OpenAI Agents SDK with an Assay sandbox.

    pip install 'assay-agent[mcp]' openai-agents
    OPENAI_API_KEY=… python examples/openai_agents_sdk.py "Write fib.py and run it for 30"

It starts `assay mcp serve all --stdio` itself. With --http, it uses running servers
(`assay mcp serve all`), and sends the token in ASSAY_MCP_TOKEN if it is set. Any endpoint with chat
completions works: set --base-url and --model.
"""

import argparse
import os
import sys
from contextlib import AsyncExitStack

import anyio
from agents import Agent, Model, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.mcp import MCPServer, MCPServerStdio, MCPServerStreamableHttp
from openai import AsyncOpenAI

URLS = ("http://127.0.0.1:7101/mcp", "http://127.0.0.1:7102/mcp")
CALL_S = 330
"""Runs may take long; the default of the SDK is five seconds."""
INSTRUCTIONS = """\
You work with tools in an isolated workspace. Write files, run them, read their output, and fix
failures. Say that something works only after you have seen it work. If an answer contains a
workspace handle, pass that handle with every later call."""


def started_server() -> MCPServer:
    arguments = ["-m", "assay", "mcp", "serve", "all", "--stdio"]
    return MCPServerStdio(
        params={"command": sys.executable, "args": arguments},
        client_session_timeout_seconds=CALL_S,
    )


def running_servers(urls: tuple[str, ...], token: str) -> list[MCPServer]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return [
        MCPServerStreamableHttp(
            params={"url": url, "headers": headers, "timeout": CALL_S},
            client_session_timeout_seconds=CALL_S,
        )
        for url in urls
    ]


async def pursue(goal: str, model: Model, servers: list[MCPServer], max_turns: int = 30) -> str:
    set_tracing_disabled(disabled=True)  # Otherwise the SDK reports every run to OpenAI.
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        agent = Agent(
            name="coder", instructions=INSTRUCTIONS, model=model, mcp_servers=list(servers)
        )
        outcome = await Runner.run(agent, goal, max_turns=max_turns)
    return str(outcome.final_output)


async def main() -> None:
    parser = argparse.ArgumentParser(description="Work on a goal in an Assay sandbox.")
    parser.add_argument("goal")
    parser.add_argument("--model", default="gpt-5.1")
    parser.add_argument("--base-url", help="an OpenAI-compatible endpoint")
    parser.add_argument("--http", action="store_true", help="use servers that are already running")
    parser.add_argument(
        "--url",
        action="append",
        help="address of a running server (repeatable) [default: ports 7101 and 7102]",
    )
    wanted = parser.parse_args()

    client = AsyncOpenAI(base_url=wanted.base_url)
    model = OpenAIChatCompletionsModel(model=wanted.model, openai_client=client)
    token = os.environ.get("ASSAY_MCP_TOKEN", "")  # noqa: TID251 - a script, not the product
    urls = tuple(wanted.url or URLS)
    servers = running_servers(urls, token) if wanted.http or wanted.url else [started_server()]
    print(await pursue(wanted.goal, model, servers))


if __name__ == "__main__":
    anyio.run(main)
