"""MCP server for a set of tools: lists them, identifies the caller, and formats failures.

Tools have validated arguments, and answer as text and values. Long calls send progress
notifications. The local user behind a loopback connection is found in the kernel's socket
tables.
"""

import base64
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from typing import Any, Final, Generic, TypeVar

import anyio
import mcp_types as types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from assay.contracts.distribution import DISTRIBUTION
from assay.contracts.errors import AssayError
from assay.contracts.execution import WORKSPACE, OutputChunk
from assay.contracts.messages import ToolSpec
from assay.contracts.ports import OnOutput
from assay.mcp.workspaces import McpClient, Workspace, Workspaces
from assay.tools.arguments import Arguments, build_spec, plain_schema, read_arguments

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
        wanted = (_as_in_table(*client), _as_in_table(*server))
        lines = _TABLES[address.version].read_text().splitlines()[1:]
    except (ValueError, OSError):
        return ""
    if not address.is_loopback:
        return ""
    for columns in map(str.split, lines):
        if (columns[_LOCAL], columns[_REMOTE]) == wanted:
            return columns[_UID]
    return ""


def _as_in_table(host: str, port: int) -> str:
    packed = ip_address(host).packed
    words = (packed[begin : begin + 4] for begin in range(0, len(packed), 4))
    written = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{written}:{port:04X}"


ResultT = TypeVar("ResultT")

_EVERY_S: Final = 0.5
_MOST_BYTES: Final = 2000

Report = Callable[[float, float | None, str | None], Awaitable[None]]
"""Callback for progress, total and message; does nothing if the client requested no progress."""


async def with_progress(act: Callable[[OnOutput], Awaitable[ResultT]], tell: Report) -> ResultT:
    """Run a call with regular progress reports. Exceptions propagate unchanged."""
    progress = _Progress()
    outcome: list[ResultT | AssayError] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(progress.report, tell)
        try:
            outcome.append(await act(progress.hear))
        except AssayError as error:
            outcome.append(error)  # A task group would wrap the exception.
        tasks.cancel_scope.cancel()
    [result] = outcome
    if isinstance(result, AssayError):
        raise result
    return result


@dataclass(slots=True)
class _Progress:
    """Progress of one call. A client that reads slowly misses output, but not the end."""

    _unsaid: bytearray = field(default_factory=bytearray)

    def hear(self, chunk: OutputChunk) -> None:
        self._unsaid += chunk.data
        del self._unsaid[:-_MOST_BYTES]

    async def report(self, tell: Report) -> None:
        """Report at intervals until cancelled."""
        begun = anyio.current_time()
        while True:
            await anyio.sleep(_EVERY_S)
            said = self._unsaid.decode("utf-8", errors="replace")
            self._unsaid.clear()
            elapsed_s = anyio.current_time() - begun
            await tell(round(elapsed_s, 3), None, said or f"running for {elapsed_s:.0f} s")


_LONGEST_PATH = 4096


class WorkspaceArguments(Arguments):
    """Arguments of every tool."""

    workspace: str = Field(
        default="",
        max_length=100,
        description="The handle of a workspace, from an earlier answer; none the first time, "
        "`new` for one more.",
    )


class PathArguments(WorkspaceArguments):
    """Arguments of every tool that takes one path."""

    path: str = Field(
        min_length=1, max_length=_LONGEST_PATH, description="Path from the workspace root."
    )


class Answer(BaseModel):
    """Structured answer of every tool."""

    model_config = ConfigDict(frozen=True)

    workspace: str = Field(description="Give this as `workspace` to go on in the same workspace.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image in an answer."""

    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One answer: values for programs, text for models, images for both.

    A failing program is an answer. A call that could not be carried out at all raises.
    """

    answer: Answer
    text: str
    images: tuple[Image, ...] = ()


ArgumentsT = TypeVar("ArgumentsT", bound=WorkspaceArguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool(Generic[ArgumentsT]):
    """One tool of an MCP server."""

    name: str
    title: str
    description: str
    arguments: type[ArgumentsT]
    answer: type[Answer]
    call: Callable[[ArgumentsT, Workspace, OnOutput], Awaitable[Said]]
    reads_only: bool = False
    destroys: bool = False
    repeatable: bool = False
    """Whether a repeated call has no further effect."""


AnyTool = ServedTool[Any]


def path_in(written: str) -> PurePosixPath:
    """Return a path from the workspace root; the sandbox checks that it stays inside."""
    path = PurePosixPath(written)
    return path.relative_to(WORKSPACE) if path.is_relative_to(WORKSPACE) else path


_LOG: Final = logging.getLogger(__name__)
_SESSION_HEADER: Final = "mcp-session-id"
_INSTRUCTIONS: Final = (
    "These tools work in an isolated workspace, empty at first, that is yours alone. Every answer "
    "names it as `workspace`: give that handle with later calls to stay in the same one, or `new` "
    "to get another. It ends when it has not been used for a while."
)

Context = ServerRequestContext[Any, Any]


def build_server(name: str, tools: Sequence[AnyTool], workspaces: Workspaces) -> Server[Any]:
    """Build a server that offers these tools."""
    by_name = {tool.name: tool for tool in tools}
    specs = {tool.name: build_spec(tool.name, tool.description, tool.arguments) for tool in tools}
    listed = [_describe(tool, specs[tool.name]) for tool in tools]

    async def list_tools(
        ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        del ctx, params
        return types.ListToolsResult(tools=listed)

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = by_name.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:100]!r}")
        _LOG.info("a call", extra={"tool": tool.name, "request": str(ctx.request_id)})
        try:
            caller = _caller(ctx)
            wanted = read_arguments(specs[tool.name], tool.arguments, params.arguments or {})
            said = await _call(tool, wanted, ctx, caller, workspaces)
        except AssayError as error:
            hint = f"; {error.hint}" if error.hint else ""
            return types.CallToolResult(content=[_text(f"{error}{hint}")], is_error=True)
        except Exception:  # noqa: BLE001 - an entry point handles all errors
            # Internal errors belong in the log; the client does not see them.
            _LOG.exception("%s failed", tool.name)
            return types.CallToolResult(
                content=[_text(f"{tool.name} failed; the server's log says why")], is_error=True
            )
        return _result(said, name_workspace=not caller.alone)

    return Server(
        name,
        version=version(DISTRIBUTION),
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _call(
    tool: AnyTool,
    wanted: WorkspaceArguments,
    ctx: Context,
    caller: McpClient,
    workspaces: Workspaces,
) -> Said:
    async with workspaces.lease(caller, wanted.workspace) as workspace:
        return await with_progress(
            lambda on_output: tool.call(wanted, workspace, on_output), ctx.session.report_progress
        )


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


def _describe(tool: AnyTool, spec: ToolSpec) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=dict(spec.parameters),
        output_schema=plain_schema(tool.answer),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.reads_only,
            destructive_hint=tool.destroys,
            idempotent_hint=tool.reads_only or tool.repeatable,
            open_world_hint=False,
        ),
    )


def _result(said: Said, *, name_workspace: bool) -> types.CallToolResult:
    content: list[types.ContentBlock] = [_text(said.text)]
    for image in said.images:
        data = base64.b64encode(image.data).decode("ascii")
        content.append(types.ImageContent(type="image", data=data, mime_type=image.media_type))
    if name_workspace:  # Many clients show a model only the text.
        content.append(_text(f"workspace: {said.answer.workspace}"))
    return types.CallToolResult(
        content=content, structured_content=said.answer.model_dump(mode="json")
    )


def _text(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)
