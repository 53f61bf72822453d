"""Our MCP servers as processes of their own, and clients of them."""

import json
import os
import signal
import subprocess  # noqa: TID251 - the servers are looked at from outside
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

ASSAY = (sys.executable, "-m", "assay")
FILE_TOOLS = {
    *("sandbox_read_file", "sandbox_write_file", "sandbox_list_directory"),
    *("sandbox_make_directory", "sandbox_remove_path"),
}
PROGRAM_TOOLS = {"sandbox_run_command", "sandbox_run_python"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Servers that run."""

    process: subprocess.Popen[str]
    filesystem: str
    executor: str
    folder: Path


def environment(folder: Path, **settings: str) -> dict[str, str]:
    """Everything of the servers in one folder; nothing is preloaded, so that they start fast."""
    return {
        **os.environ,  # noqa: TID251 - for a process that reads its own
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_STATE_HOME": str(folder / "state"),
        "ASSAY_RUNTIME_DIR": str(folder / "runtime"),
        "ASSAY_CONFIG": str(_config(folder)),
        **settings,
    }


def _config(folder: Path) -> Path:
    path = folder / "config.toml"
    if not path.exists():
        path.write_text("[sandbox]\npreload = []\npool_size = 1\n")
    return path


@contextmanager
def serve(folder: Path, *words: str, which: str = "all", **settings: str) -> Generator[Served]:
    """Start servers over HTTP on free ports, and stop them as a service would be."""
    with (folder / "stderr").open("w") as log:
        process = subprocess.Popen(
            [*ASSAY, "mcp", "serve", which, "--port", "0", "--json", *words],
            env=environment(folder, **settings),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, (folder / "stderr").read_text()
        urls = json.loads(said)
        yield Served(
            process=process,
            filesystem=urls.get("filesystem", ""),
            executor=urls.get("executor", ""),
            folder=folder,
        )
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@asynccontextmanager
async def http_client(
    url: str, *, token: str = "", headers: Mapping[str, str] | None = None, mode: str = "auto"
) -> AsyncGenerator[Client]:
    """Open the official client, with a token if there is one."""
    sent = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
    async with httpx2.AsyncClient(headers=sent, timeout=60) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


def stdio_client(folder: Path, which: str = "all") -> Client:
    """The official client, which starts the server itself."""
    parameters = StdioServerParameters(
        command=ASSAY[0],
        args=[*ASSAY[1:], "mcp", "serve", which, "--stdio"],
        env=environment(folder),
    )
    return Client(parameters)


def values(result: CallToolResult) -> dict[str, Any]:
    """What a call answered, as values."""
    assert not result.is_error, words(result)
    return result.structured_content


def words(result: CallToolResult) -> str:
    """What a call answered, in words."""
    return "\n".join(block.text for block in result.content if block.type == "text")


def refusal(result: CallToolResult) -> str:
    """Why a call was refused."""
    assert result.is_error, words(result)
    return words(result)
