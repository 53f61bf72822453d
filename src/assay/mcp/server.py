"""MCP server for a set of tools: lists them, identifies the caller, and formats failures."""

import base64
import logging
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

import mcp_types as types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request

from assay.contracts.distribution import DISTRIBUTION
from assay.contracts.errors import AssayError
from assay.contracts.messages import ToolSpec
from assay.mcp.peers import user_of
from assay.mcp.progress import with_progress
from assay.mcp.tools import AnyTool, Said, WorkspaceArguments
from assay.mcp.workspaces import McpClient, Workspaces
from assay.tools.arguments import build_spec, plain_schema, read_arguments

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
