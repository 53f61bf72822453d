"""MCP server for a set of tools: lists them, identifies the caller, and formats failures.

Long calls send progress notifications. The local user behind a loopback connection is found in the
kernel's socket tables.
"""

import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from assay.asyncx.owned_context import open_task_group
from assay.contracts.distribution import DISTRIBUTION
from assay.contracts.errors import AssayError
from assay.contracts.execution import OutputChunk
from assay.mcp.tools import ServedTool, ToolCall
from assay.mcp.workspaces import McpClient, Workspaces
from assay.settings.sections import McpSettings
from assay.tools.arguments import read_arguments, with_hint

_TABLES: Final = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
_LOCAL, _REMOTE, _UID = 1, 2, 7
"""Columns of the kernel's tables of TCP sockets."""
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of a proxy: the connection is then the proxy's, and its users are unknown."""


def user_of(scope: Scope) -> str:
    """Return the local user that sent a request; empty if unknown."""
    client, server = scope.get("client"), scope.get("server")
    headers = Headers(scope=scope)
    if not client or not server or any(name in headers for name in _FORWARDED):
        return ""
    return connected_user((client[0], client[1]), (server[0], server[1]))


def connected_user(client: tuple[str, int], server: tuple[str, int]) -> str:
    """Return the id of the user that owns the client's socket; empty if there is none."""
    try:
        address = ip_address(client[0])
        expected = (_as_in_table(*client), _as_in_table(*server))
        lines = _TABLES[address.version].read_text().splitlines()[1:]
    except (ValueError, OSError):
        return ""
    if not address.is_loopback:
        return ""
    for columns in map(str.split, lines):
        if (columns[_LOCAL], columns[_REMOTE]) == expected:
            return columns[_UID]
    return ""


def _as_in_table(host: str, port: int) -> str:
    packed = ip_address(host).packed
    words = (packed[begin : begin + 4] for begin in range(0, len(packed), 4))
    written = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{written}:{port:04X}"


_EVERY_S: Final = 0.5
_MOST_BYTES: Final = 2000

Report = Callable[[float, float | None, str | None], Awaitable[None]]
"""Callback for progress, total and message; does nothing if the client requested no progress."""


class _Progress:
    """Output of one call that was not reported. A slow client misses output, but not the end."""

    def __init__(self) -> None:
        self._unsent = bytearray()

    def add(self, chunk: OutputChunk) -> None:
        self._unsent += chunk.data
        del self._unsent[:-_MOST_BYTES]

    async def report(self, send: Report) -> None:
        """Report at intervals until cancelled."""
        started = anyio.current_time()
        while True:
            await anyio.sleep(_EVERY_S)
            text = self._unsent.decode("utf-8", errors="replace")
            self._unsent.clear()
            elapsed_s = anyio.current_time() - started
            await send(round(elapsed_s, 3), None, text or f"running for {elapsed_s:.0f} s")


_LOG: Final = logging.getLogger(__name__)
_SESSION_HEADER: Final = "mcp-session-id"
_INSTRUCTIONS: Final = (
    "These tools work in an isolated workspace, empty at first, that is yours alone. Every answer "
    "names it as `workspace`: give that handle with later calls to stay in the same one, or `new` "
    "to get another. It ends when it has not been used for a while."
)

Context = ServerRequestContext[Any, Any]


def build_server(
    name: str, tools: Sequence[ServedTool], workspaces: Workspaces, settings: McpSettings
) -> Server[Any]:
    """Build a server that offers these tools."""
    by_name = {tool.listed.name: tool for tool in tools}

    async def list_tools(
        ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        del ctx, params
        return types.ListToolsResult(tools=[tool.listed for tool in tools])

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = by_name.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:100]!r}")
        _LOG.info("a call", extra={"tool": params.name, "request": str(ctx.request_id)})
        try:
            arguments = read_arguments(tool.spec, tool.arguments, params.arguments or {})
            return await _call(tool, dict(arguments), ctx, workspaces, settings)
        except AssayError as error:
            text = with_hint(error)
        except Exception:  # noqa: BLE001 - an entry point handles all errors
            # Internal errors belong in the log; the client does not see them.
            _LOG.exception("%s failed", params.name)
            text = f"{params.name} failed; the server's log says why"
        content = types.TextContent(type="text", text=text)
        return types.CallToolResult(content=[content], is_error=True)

    return Server(
        name,
        version=version(DISTRIBUTION),
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _call(
    tool: ServedTool,
    arguments: dict[str, Any],
    ctx: Context,
    workspaces: Workspaces,
    settings: McpSettings,
) -> types.CallToolResult:
    """Run a call in the workspace of its caller, with regular progress reports."""
    caller = _caller(ctx)
    progress = _Progress()
    async with workspaces.lease(caller, arguments.pop("workspace")) as workspace:
        call = ToolCall(
            workspace=workspace,
            settings=settings,
            on_output=progress.add,
            name_workspace=not caller.alone,
        )
        async with open_task_group() as tasks:
            tasks.start_soon(progress.report, ctx.session.report_progress)
            return await tool.call(call, **arguments)


def _caller(ctx: Context) -> McpClient:
    """Return the caller. Only facts that the transport has verified count."""
    request = ctx.request
    if not isinstance(request, Request):
        return McpClient(connection="stdio", alone=True)
    user = request.scope.get("user")
    if isinstance(user, AuthenticatedUser):
        return McpClient(token=user.username, alone=True)
    peer = user_of(request.scope)
    # In the older protocol, the transport has verified that the session exists and is theirs;
    # in the newer one this header means nothing, and any client can send it.
    if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
        return McpClient(user=peer, connection=request.headers.get(_SESSION_HEADER, ""))
    return McpClient(user=peer)
