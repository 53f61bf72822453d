"""Configurations of MCP clients for Assay's servers."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, assert_never

from assay.contracts.errors import UsageError

ClientName = Literal["claude-desktop", "cursor", "vscode", "openai-agents"]

URLS: Final = {
    "assay-filesystem": "http://127.0.0.1:7101/mcp",
    "assay-executor": "http://127.0.0.1:7102/mcp",
}
TOKEN_VARIABLE: Final = "ASSAY_MCP_TOKEN"  # noqa: S105 - the name of a variable
_LONGEST_CALL_S: Final = 330
"""Above the maximum duration of a run, so that the client waits for the answer."""

_AGENTS_STDIO: Final = """\
from agents.mcp import MCPServerStdio

server = MCPServerStdio(
    params={{"command": {command}, "args": {args}}},
    client_session_timeout_seconds={timeout_s},
)
# async with server: Agent(name="…", mcp_servers=[server])
"""
_AGENTS_HTTP: Final = """\
import os

from agents.mcp import MCPServerStreamableHttp

headers = {headers}
servers = [
    MCPServerStreamableHttp(
        params={{"url": url, "headers": headers, "timeout": {timeout_s}}},
        client_session_timeout_seconds={timeout_s},
    )
    for url in {urls}
]
# Enter each with `async with`, then: Agent(name="…", mcp_servers=servers)
"""


def command_line() -> list[str]:
    """Return the command that starts both servers on stdio, from any folder."""
    script = Path(sys.executable).with_name("assay")
    # Absolute, because graphical programs do not have a shell's search path.
    start = [str(script)] if script.exists() else [sys.executable, "-m", "assay"]
    return [*start, "mcp", "serve", "all", "--stdio"]


def configuration(client: ClientName, *, http: bool = False, token: bool = False) -> str:
    """Return the text for the client's configuration file.

    Raises:
        UsageError: If the client does not support this transport.
    """
    command, *args = command_line()
    started: dict[str, Any] = {"command": command, "args": args}
    match client:
        case "claude-desktop":
            if http:
                raise UsageError(
                    "Claude Desktop starts its local servers itself", hint="leave out --http"
                )
            return _json({"mcpServers": {"assay": started}})
        case "cursor":
            reached = _reached(f"Bearer ${{env:{TOKEN_VARIABLE}}}" if token else "")
            return _json({"mcpServers": reached if http else {"assay": started}})
        case "vscode":
            return _json(_vscode(started, http=http, token=token))
        case "openai-agents":
            return _agents(started, http=http, token=token)
        case _:
            assert_never(client)


def _reached(authorization: str) -> dict[str, dict[str, Any]]:
    headers = {"headers": {"Authorization": authorization}} if authorization else {}
    return {name: {"url": url, **headers} for name, url in URLS.items()}


def _vscode(started: Mapping[str, Any], *, http: bool, token: bool) -> dict[str, Any]:
    if not http:
        return {"servers": {"assay": {"type": "stdio", **started}}}
    asked = {
        "type": "promptString",
        "id": "assay-token",
        "description": "Token of `assay mcp token`",
        "password": True,
    }
    reached = _reached("Bearer ${input:assay-token}" if token else "")
    servers = {name: {"type": "http", **fields} for name, fields in reached.items()}
    return {**({"inputs": [asked]} if token else {}), "servers": servers}


def _agents(started: Mapping[str, Any], *, http: bool, token: bool) -> str:
    if not http:
        return _AGENTS_STDIO.format(
            command=json.dumps(started["command"]),
            args=json.dumps(started["args"]),
            timeout_s=_LONGEST_CALL_S,
        )
    bearer = f'{{"Authorization": f"Bearer {{os.environ[\'{TOKEN_VARIABLE}\']}}"}}'
    return _AGENTS_HTTP.format(
        headers=bearer if token else "{}",
        urls=json.dumps(list(URLS.values())),
        timeout_s=_LONGEST_CALL_S,
    )


def _json(fields: Mapping[str, Any]) -> str:
    return f"{json.dumps(fields, indent=2)}\n"
