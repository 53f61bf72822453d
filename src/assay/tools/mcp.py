"""Tools of other MCP servers, as tools of Assay.

The user chooses such a server. A local one runs on this machine, outside of any sandbox; it gets a
clean environment and ends with the session. Its output is untrusted text and is truncated. A server
that hangs, floods or crashes fails only the current call.
"""

import logging
import re
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from anyio.abc import TaskGroup, TaskStatus

from assay.contracts.errors import MissingExtraError, ToolError
from assay.contracts.messages import ToolSpec
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.settings.sections import ForeignServerSettings
from assay.text.formatting import cut_middle, strip_control_codes
from assay.tools.arguments import applicable, check_arguments
from assay.tools.discover import RegisteredTool

if TYPE_CHECKING:
    import mcp_types as types
    from mcp import Client

_LOG: Final = logging.getLogger(__name__)
_MOST_CHARS: Final = 12_000
_LONGEST_DESCRIPTION: Final = 1500
_MOST_TOOLS: Final = 128
_MOST_PAGES: Final = 10

OnNotice = Callable[[str], None]


class ServerGoneError(ToolError):
    """The server cannot be reached, or its connection was lost during a call."""


@dataclass(slots=True)
class ForeignServer:
    """One server; connects on demand, and reconnects after a loss."""

    name: str
    settings: ForeignServerSettings
    tasks: TaskGroup
    _client: "Client | None" = None
    _left: anyio.Event = field(default_factory=anyio.Event)
    _connecting: anyio.Lock = field(default_factory=anyio.Lock)

    async def list_tools(self) -> list["types.Tool"]:
        """Return the tools of the server.

        Raises:
            ServerGoneError: If it does not answer.
        """
        found: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self._ask(lambda client, at=cursor: client.list_tools(cursor=at))
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) >= _MOST_TOOLS:
                break
        return found[:_MOST_TOOLS]

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> "types.CallToolResult":
        """Call a tool.

        Raises:
            ToolError: If the server rejects the call, times out or is lost.
        """
        return await self._ask(lambda client: client.call_tool(tool, dict(arguments)))

    async def _ask(self, ask: Callable[["Client"], Any]) -> Any:
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        client = await self._connected()
        try:
            with anyio.fail_after(self.settings.timeout_s):
                return await ask(client)
        except TimeoutError:
            self.leave()  # Closing the connection stops the server's work on this call.
            raise ToolError(
                f"the MCP server {self.name!r} did not answer in {self.settings.timeout_s:g} s"
            ) from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self.leave()
                raise ServerGoneError(f"the MCP server {self.name!r} went away") from error
            raise ToolError(f"the MCP server {self.name!r} refuses: {error}") from error
        except Exception as error:
            self.leave()
            raise ServerGoneError(
                f"the MCP server {self.name!r} cannot be talked to: {_short(error)}"
            ) from error

    async def _connected(self) -> "Client":
        async with self._connecting:
            client = self._client
            if client is None:
                try:
                    with anyio.fail_after(self.settings.timeout_s):
                        client = await self.tasks.start(self._keep)
                except TimeoutError:
                    wait = f"{self.settings.timeout_s:g} s"
                    raise ServerGoneError(
                        f"the MCP server {self.name!r} did not begin in {wait}"
                    ) from None
                self._client = client
        return client

    async def _keep(self, *, task_status: TaskStatus["Client"]) -> None:
        """Run one connection: the task that opens it also has to close it."""
        left = self._left = anyio.Event()
        begun = False
        # A file and not a pipe: the server must not wait for a reader.
        with tempfile.TemporaryFile("w+", errors="replace") as complaints:
            try:
                async with _open_client(self.settings, complaints) as client:
                    begun = True
                    task_status.started(client)
                    await left.wait()
            except Exception as error:
                if begun:
                    _LOG.info("the MCP server %s ended badly: %s", self.name, _short(error))
                    return
                said = _last_line(complaints)
                raise ServerGoneError(
                    f"the MCP server {self.name!r} cannot be started: {said or _short(error)}"
                ) from error
            finally:
                if self._left is left:  # Otherwise a newer connection exists already.
                    self.leave()

    def leave(self) -> None:
        """Close the connection; the next call opens a new one."""
        self._client = None
        self._left.set()


@asynccontextmanager
async def _open_client(
    settings: ForeignServerSettings, complaints: Any
) -> AsyncGenerator["Client"]:
    """Start the server's program, or connect to its address."""
    from mcp import Client

    if settings.command:
        from mcp.client.stdio import StdioServerParameters, stdio_client

        command, *args = settings.command
        env = {name: value.get_secret_value() for name, value in settings.env.items()}
        parameters = StdioServerParameters(
            command=command, args=args, env=env, encoding_error_handler="replace"
        )
        async with Client(stdio_client(parameters, errlog=complaints)) as client:
            yield client
        return
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    async with httpx2.AsyncClient(headers=headers, timeout=settings.timeout_s) as http:
        transport = streamable_http_client(settings.url or "", http_client=http)
        async with Client(transport) as client:
            yield client


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTool:
    """One tool of another MCP server. It does not use the sandbox."""

    spec: ToolSpec
    server: ForeignServer
    remote_name: str
    checked: Mapping[str, Any]
    """The part of its schema that Assay checks."""

    async def call(
        self,
        arguments: Mapping[str, Any],
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> str:
        del sandbox, on_output
        check_arguments(self.spec.name, self.checked, arguments)
        result = await self.server.call(self.remote_name, arguments)
        told = cut_middle(strip_control_codes(_in_words(result)).strip(), max_chars=_MOST_CHARS)
        if result.is_error:
            return f"the tool failed: {told or 'it does not say why'}"
        return told or "done; it says nothing"


def _in_words(result: "types.CallToolResult") -> str:
    parts: list[str] = []
    for block in result.content:
        match block.type:
            case "text":
                parts.append(block.text)
            case "image" | "audio":
                parts.append(f"[{block.mime_type}, not shown]")
            case _:
                parts.append(f"[{block.type}, not shown]")
    if not parts and result.structured_content is not None:
        parts.append(str(result.structured_content))
    return "\n".join(parts)


@asynccontextmanager
async def open_foreign_tools(
    servers: Mapping[str, ForeignServerSettings], on_notice: OnNotice
) -> AsyncGenerator[tuple[RegisteredTool, ...]]:
    """Connect to the servers and yield their tools; skips and reports servers that fail.

    Raises:
        MissingExtraError: If the MCP library is not installed.
    """
    if not servers:
        yield ()
        return
    if find_spec("mcp") is None:
        raise MissingExtraError("tools of MCP servers", extra="mcp")
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        opened = [ForeignServer(name, each, tasks) for name, each in servers.items()]
        offered: dict[str, list[RegisteredTool]] = {server.name: [] for server in opened}
        async with anyio.create_task_group() as asking:
            for server in opened:
                asking.start_soon(_offer, server, offered[server.name], on_notice)
        try:
            yield tuple(tool for server in opened for tool in offered[server.name])
        except Exception as error:  # noqa: BLE001 - raised below: a task group would wrap it
            failure = error
        finally:
            for server in opened:
                server.leave()
    if failure is not None:
        raise failure


async def _offer(server: ForeignServer, into: list[RegisteredTool], on_notice: OnNotice) -> None:
    try:
        listed = await server.list_tools()
    except ToolError as error:
        on_notice(f"left out tools: {error}")
        return
    into += [
        RegisteredTool(tool=tool, origin=f"mcp:{server.name}", approval=server.settings.approval)
        for tool in _as_ours(server, listed, on_notice)
    ]


def _as_ours(
    server: ForeignServer, listed: Sequence["types.Tool"], on_notice: OnNotice
) -> list[ForeignTool]:
    found: dict[str, ForeignTool] = {}
    for each in listed:
        name = re.sub(r"[^a-z0-9_]+", "_", f"{server.name}_{each.name}".lower())[:64]
        if name in found:
            on_notice(f"left out a tool: {each.name[:80]!r} of {server.name!r} is there twice")
            continue
        checked = applicable(each.input_schema)
        description = strip_control_codes(each.description or each.name)
        spec = ToolSpec(
            name=name,
            description=description[:_LONGEST_DESCRIPTION].strip(),
            parameters={**each.input_schema, "type": "object"},
        )
        found[name] = ForeignTool(spec=spec, server=server, remote_name=each.name, checked=checked)
    return list(found.values())


def _short(error: BaseException) -> str:
    """Describe an error in one line, including errors in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _last_line(complaints: Any) -> str:
    complaints.seek(0)
    lines = complaints.read(100_000).strip().splitlines()
    return strip_control_codes(lines[-1])[:200] if lines else ""
