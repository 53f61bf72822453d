"""Opens the sandboxes behind the MCP servers, and serves until a signal."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal

import anyio

from assay.asyncx.listen import listen
from assay.auth.token_file import Reread
from assay.contracts.execution import Limits, SandboxSpec
from assay.contracts.ports import Sandbox, SandboxBackend, trouble_of
from assay.mcp.exec_tools import program_tools
from assay.mcp.file_tools import file_tools
from assay.mcp.http import HttpPolicy, Listening, check_reachable, serve_http
from assay.mcp.server import build_server
from assay.mcp.stdio import serve_stdio
from assay.mcp.tokens import TOKEN_FILE, Tokens, load_tokens
from assay.mcp.tools import AnyTool
from assay.mcp.workspaces import Workspaces, open_workspaces
from assay.settings.load import Settings
from assay.settings.sections import McpSettings
from assay.wiring import open_backend

Which = Literal["filesystem", "executor", "all"]
PORTS: Final = {"filesystem": 7101, "executor": 7102}
_ENVELOPE_BYTES: Final = 64 << 10
"""Size of a message apart from the content of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAddress:
    """Address for HTTP."""

    host: str
    port: int | None
    """None: the default ports. With several servers, the port of the first; 0 picks free ports."""


def serve(
    which: Which,
    settings: Settings,
    place: HttpAddress | None,
    on_ready: Callable[[dict[str, str]], None],
) -> None:
    """Serve over HTTP at an address, or over standard input and output without one.

    Raises:
        UsageError: If the address is unusable, or other machines could connect without tokens.
        IsolationUnavailableError: If this machine cannot provide the isolation.
    """
    if place is None:
        anyio.run(_serve_stdio, which, settings)
        return
    policy = _policy(settings)
    check_reachable(place.host, policy)
    names = ("filesystem", "executor") if which == "all" else (which,)
    sockets = {
        name: listen(place.host, _port(name, offset, place.port))
        for offset, name in enumerate(names)
    }

    async def run() -> None:
        async with _open(settings) as (workspaces, backend):
            listening = [
                Listening(
                    name=name,
                    server=build_server(f"assay-{name}", _tools(name, settings.mcp), workspaces),
                    socket=taken,
                )
                for name, taken in sockets.items()
            ]
            on_ready({each.name: each.url for each in listening})
            await serve_http(listening, policy, lambda: trouble_of(backend))

    try:
        anyio.run(run)
    finally:
        for taken in sockets.values():
            taken.close()


async def _serve_stdio(which: Which, settings: Settings) -> None:
    async with _open(settings) as (workspaces, _):
        server = build_server(f"assay-{which}", _tools(which, settings.mcp), workspaces)
        await serve_stdio(server, line_bytes=_body_bytes(settings.mcp))


@asynccontextmanager
async def _open(settings: Settings) -> AsyncGenerator[tuple[Workspaces, SandboxBackend]]:
    mcp = settings.mcp
    limits = Limits(
        wall_s=mcp.timeout_s,
        cpu_s=mcp.timeout_s,
        memory_mb=mcp.memory_mb,
        processes=mcp.processes,
        disk_mb=mcp.disk_mb,
        output_bytes=mcp.output_bytes,
    )
    equipment = SandboxSpec(packages=mcp.packages, hosts=mcp.network)
    async with open_backend(settings.sandbox) as backend:

        def open_sandbox() -> AbstractAsyncContextManager[Sandbox]:
            return backend.open_sandbox(limits, equipment)

        async with open_workspaces(
            open_sandbox, idle_s=mcp.idle_s, most=mcp.max_workspaces
        ) as workspaces:
            yield workspaces, backend


def _tools(which: str, mcp: McpSettings) -> tuple[AnyTool, ...]:
    files = file_tools(most_bytes=mcp.file_bytes)
    programs = program_tools(longest_s=mcp.timeout_s)
    return {"filesystem": files, "executor": programs, "all": files + programs}[which]


def _policy(settings: Settings) -> HttpPolicy:
    mcp = settings.mcp
    return HttpPolicy(
        tokens=Reread(
            mcp.token_file or settings.state_dir / TOKEN_FILE, load_tokens, nothing=Tokens({})
        ),
        hosts=mcp.hosts,
        origins=mcp.origins,
        body_bytes=_body_bytes(mcp),
        session_idle_s=mcp.idle_s,
    )


def _body_bytes(mcp: McpSettings) -> int:
    """Return the maximum size of a message: a file as base64, and its envelope."""
    return mcp.file_bytes * 4 // 3 + _ENVELOPE_BYTES


def _port(name: str, offset: int, first: int | None) -> int:
    if first is None:
        return PORTS[name]
    return first + offset if first else 0
