"""Opens the sandboxes behind the MCP servers, and serves until a signal.

The transports are standard input and output, for clients that start the server themselves, and
streamable HTTP: one process, one port per server, checks of tokens and origins.
"""

import logging
import os
import select
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Final, Literal

import anyio
import anyio.lowlevel
import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.asyncx.listen import EmbeddedServer, is_loopback, listen, url_of
from assay.asyncx.owned_context import open_task_group
from assay.auth.tokens import TokenFile, bearer_token, mcp_tokens
from assay.contracts.errors import UsageError
from assay.contracts.execution import Limits, SandboxSpec
from assay.contracts.ports import Sandbox, SandboxBackend, trouble_of
from assay.mcp.server import build_server
from assay.mcp.tools import FILE_TOOLS, PROGRAM_TOOLS
from assay.mcp.workspaces import Workspaces, open_workspaces
from assay.settings.load import Settings
from assay.settings.sections import McpSettings
from assay.wiring import open_backend

PATH: Final = "/mcp"
HEALTH_PATH: Final = "/healthz"
_LOG: Final = logging.getLogger(__name__)
_DRAIN_S: Final = 5
"""Grace period for calls after the signal to stop."""
_MOST_CONNECTIONS: Final = 256
_MOST_SESSIONS: Final = 256


def check_reachable(host: str, settings: McpSettings, tokens: TokenFile) -> None:
    """Refuse to listen for other machines without tokens, or without host names.

    Raises:
        UsageError: If tokens or host names are missing, or the token file is unusable.
    """
    known = tokens.read()
    if is_loopback(host):
        return
    if not known:
        raise UsageError(
            f"every client that reaches {host} could run programs here",
            hint="create a token first: `assay mcp token NAME`",
        )
    if not settings.allowed_hosts:
        raise UsageError(
            "say under which names the servers are reached, so that others can be refused",
            hint='set mcp.allowed_hosts, for example to ["tools.example.org:*"]',
        )


async def serve_http(
    servers: Mapping[str, Server[Any]],
    sockets: Mapping[str, socket.socket],
    settings: McpSettings,
    tokens: TokenFile,
    trouble: Callable[[], str],
) -> None:
    """Serve until SIGINT or SIGTERM. Calls then have a few seconds, or until a second signal.

    `trouble` returns why programs cannot run now, for the health endpoint.
    """
    async with AsyncExitStack() as stack:
        by_port: dict[int, ASGIApp] = {}
        for name, taken in sockets.items():
            manager = _manager(servers[name], taken, settings)
            await stack.enter_async_context(manager.run())
            by_port[taken.getsockname()[1]] = manager.asgi_app
        guard = TokenGuard(by_port, tokens, trouble)
        config = uvicorn.Config(
            guard,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_DRAIN_S,
            ws="none",
        )
        server = EmbeddedServer(config)
        async with open_task_group() as tasks:
            tasks.start_soon(_stop_on_signal, server, guard)
            await server.serve(sockets=list(sockets.values()))


async def _stop_on_signal(server: uvicorn.Server, guard: "TokenGuard") -> None:
    async def drain() -> None:
        """Wait for calls, but not for notification streams that older clients keep open."""
        with anyio.move_on_after(_DRAIN_S):
            await guard.no_calls.wait()
        server.force_exit = True

    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                if server.should_exit:
                    server.force_exit = True
                server.should_exit = True
                _LOG.info("stopping")
                tasks.start_soon(drain)


def _manager(
    server: Server[Any], taken: socket.socket, settings: McpSettings
) -> StreamableHTTPSessionManager:
    host, port = taken.getsockname()[:2]
    own = {f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
    if is_loopback(host):
        own |= {f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"}
    return StreamableHTTPSessionManager(
        server,
        security_settings=TransportSecuritySettings(
            allowed_hosts=[*sorted(own), *settings.allowed_hosts],
            allowed_origins=list(settings.cors_origins),
        ),
        session_idle_timeout=settings.idle_s,
        max_request_body_size=_body_bytes(settings),
        max_sessions=_MOST_SESSIONS,
    )


class TokenGuard:
    """Authenticates requests, and routes each to the server of its port."""

    def __init__(
        self,
        by_port: Mapping[int, ASGIApp],
        tokens: TokenFile,
        trouble: Callable[[], str],
    ) -> None:
        self._by_port = by_port
        self._trouble = trouble
        self._tokens = tokens
        self._needs_token = bool(tokens.current())
        """Never reset: removing the last token must not open the server."""
        self._calls = 0
        self.no_calls = anyio.Event()
        """Set while no call is running."""
        self.no_calls.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == HEALTH_PATH:
            # Unauthenticated, so it gives no details.
            trouble = self._trouble()
            status = {"status": "unavailable" if trouble else "ok"}
            await _response(503 if trouble else 200, status)(scope, receive, send)
            return
        if scope["path"].rstrip("/") not in {PATH, ""}:
            fault = {"error": f"the server is at {PATH}"}
            await _response(404, fault)(scope, receive, send)
            return
        tokens = self._tokens.current()
        self._needs_token = self._needs_token or bool(tokens)
        if self._needs_token:
            header = Headers(scope=scope).get("authorization", "")
            owner = tokens.owner_of(bearer_token(header))
            if owner is None:
                _LOG.warning("refused a call from %s: no token, or a wrong one", scope["client"])
                fault = {"error": "a bearer token is needed"}
                await _response(401, fault)(scope, receive, send)
                return
            # The transport binds a session to this user.
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=owner, scopes=[]))
        with self._counted(scope["method"]):
            await self._by_port[scope["server"][1]](scope, receive, send)

    @contextmanager
    def _counted(self, method: str) -> Generator[None]:
        if method != "POST":
            yield
            return
        if not self._calls:
            self.no_calls = anyio.Event()
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self.no_calls.set()


def _response(status: int, fields: Mapping[str, str]) -> Response:
    headers = {"WWW-Authenticate": 'Bearer realm="assay"'} if status == 401 else {}  # noqa: PLR2004 - HTTP
    return JSONResponse(dict(fields), status_code=status, headers=headers)


_CHUNK: Final = 1 << 16


async def serve_stdio(server: Server[Any], *, line_bytes: int) -> None:
    """Serve the client until it closes its end, or until SIGINT or SIGTERM.

    A client that has exited counts as one that closed its end.
    """
    try:
        await _serve(server, line_bytes)
    except* (BrokenPipeError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        _LOG.info("the client is gone")


async def _serve(server: Server[Any], line_bytes: int) -> None:
    async with open_task_group() as tasks:
        tasks.start_soon(_cancel_on_signal, tasks.cancel_scope)
        with _input_apart() as descriptor:
            # The SDK reads in a thread, which cannot be interrupted: a stopping server would wait
            # for one more line.
            lines: Any = _Lines(descriptor, line_bytes)
            async with stdio_server(stdin=lines) as (reading, writing):
                await server.run(reading, writing, server.create_initialization_options())


async def _cancel_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


@contextmanager
def _input_apart() -> Generator[int]:
    """Replace standard input for the rest of this process, because it carries the protocol."""
    descriptor = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        yield descriptor
    finally:
        os.dup2(descriptor, 0)
        os.close(descriptor)


def _can_be_watched(descriptor: int) -> bool:
    """Whether an event loop can poll a descriptor: not a regular file, nor /dev/null."""
    with select.epoll() as watch:
        try:
            watch.register(descriptor, select.EPOLLIN)
        except PermissionError:
            return False
    return True


class _Lines:
    """Lines of a descriptor, read without a thread, which could not be interrupted."""

    def __init__(self, descriptor: int, most_bytes: int) -> None:
        self._descriptor = descriptor
        self._most_bytes = most_bytes
        self._can_wait = _can_be_watched(descriptor)

    async def __aiter__(self) -> AsyncIterator[str]:
        buffer = bytearray()
        too_long = False
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                *whole, rest = chunk.split(b"\n")
                for part in whole:
                    buffer += part
                    if not too_long and buffer.strip():
                        yield buffer.decode("utf-8", errors="replace")
                    buffer.clear()
                    too_long = False
                buffer += rest
                if len(buffer) > self._most_bytes and not too_long:
                    # Passed on as an unreadable message; the rest of the line is skipped.
                    yield "a line that is too long"
                    too_long = True
                if too_long:
                    buffer.clear()

    async def _chunks(self) -> AsyncGenerator[bytes]:
        while True:
            if self._can_wait:
                await anyio.wait_readable(self._descriptor)
            chunk = os.read(self._descriptor, _CHUNK)
            if not chunk:
                return
            yield chunk
            await anyio.lowlevel.checkpoint()


Which = Literal["filesystem", "executor", "all"]
TOOLS: Final = {
    "filesystem": FILE_TOOLS,
    "executor": PROGRAM_TOOLS,
    "all": FILE_TOOLS + PROGRAM_TOOLS,
}
PORTS: Final = {"filesystem": 7101, "executor": 7102}
_ENVELOPE_BYTES: Final = 64 << 10
"""Size of a message apart from the content of a file."""


def serve(
    which: Which,
    settings: Settings,
    host: str | None,
    port: int | None,
    on_ready: Callable[[dict[str, str]], None],
) -> None:
    """Serve over HTTP at a host, or over standard input and output without one.

    Without a port, HTTP uses the default ports. With several servers, the port is that of the
    first one; 0 picks free ports.

    Raises:
        UsageError: If the address is unusable, or other machines could connect without tokens.
        IsolationUnavailableError: If this machine cannot provide the isolation.
    """
    mcp = settings.mcp
    if host is None:
        anyio.run(_serve_stdio, which, settings)
        return
    tokens = mcp_tokens(settings)
    check_reachable(host, mcp, tokens)
    names = ("filesystem", "executor") if which == "all" else (which,)
    sockets = {
        name: listen(host, PORTS[name] if port is None else port and port + offset)
        for offset, name in enumerate(names)
    }

    async def run() -> None:
        async with _open(settings) as (workspaces, backend):
            servers = {
                name: build_server(f"assay-{name}", TOOLS[name], workspaces, mcp) for name in names
            }
            on_ready({name: url_of(taken) + PATH for name, taken in sockets.items()})
            await serve_http(servers, sockets, mcp, tokens, lambda: trouble_of(backend))

    try:
        anyio.run(run)
    finally:
        for taken in sockets.values():
            taken.close()


async def _serve_stdio(which: Which, settings: Settings) -> None:
    async with _open(settings) as (workspaces, _):
        server = build_server(f"assay-{which}", TOOLS[which], workspaces, settings.mcp)
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


def _body_bytes(mcp: McpSettings) -> int:
    """Return the maximum size of a message: a file as base64, and its envelope."""
    return mcp.file_bytes * 4 // 3 + _ENVELOPE_BYTES
