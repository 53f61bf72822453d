"""MCP over streamable HTTP: one process, one port per server, checks of tokens and origins."""

import json
import logging
import signal
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.asyncx.listen import EmbeddedServer, is_loopback, url_of
from assay.auth.token_file import Reread
from assay.contracts.errors import UsageError
from assay.mcp.tokens import Tokens

PATH: Final = "/mcp"
HEALTH_PATH: Final = "/healthz"
_LOG: Final = logging.getLogger(__name__)
_DRAIN_S: Final = 5
"""Grace period for calls after the signal to stop."""
_MOST_CONNECTIONS: Final = 256
_MOST_SESSIONS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPolicy:
    """Access rules and size limits of the servers."""

    tokens: Reread[Tokens]
    hosts: tuple[str, ...]
    """Values of the `Host` header that the servers accept, in addition to their own address."""
    origins: tuple[str, ...]
    """Origins of web pages that may call the servers; by default none."""
    body_bytes: int
    session_idle_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """A server and its listening socket."""

    name: str
    server: Server[Any]
    socket: socket.socket

    @property
    def address(self) -> tuple[str, int]:
        return self.socket.getsockname()[:2]

    @property
    def url(self) -> str:
        return url_of(self.socket) + PATH


def check_reachable(host: str, policy: HttpPolicy) -> None:
    """Refuse to listen for other machines without tokens, or without host names.

    Raises:
        UsageError: If tokens or host names are missing.
    """
    if is_loopback(host):
        return
    if not policy.tokens.current():
        raise UsageError(
            f"every client that reaches {host} could run programs here",
            hint="create a token first: `assay mcp token NAME`",
        )
    if not policy.hosts:
        raise UsageError(
            "say under which names the servers are reached, so that others can be refused",
            hint='set mcp.hosts, for example to ["tools.example.org:*"]',
        )


async def serve_http(
    listening: Sequence[Listening], policy: HttpPolicy, trouble: Callable[[], str]
) -> None:
    """Serve until SIGINT or SIGTERM. Calls then have a few seconds, or until a second signal.

    `trouble` returns why programs cannot run now, for the health endpoint.
    """
    async with AsyncExitStack() as stack:
        by_port: dict[int, ASGIApp] = {}
        for each in listening:
            manager = _manager(each, policy)
            await stack.enter_async_context(manager.run())
            by_port[each.address[1]] = manager.asgi_app
        gate = Gate(by_port, policy.tokens, trouble)
        config = uvicorn.Config(
            gate,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_DRAIN_S,
            ws="none",
        )
        server = EmbeddedServer(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_stop_on_signal, server, gate)
            await server.serve(sockets=[each.socket for each in listening])
            tasks.cancel_scope.cancel()


async def _stop_on_signal(server: uvicorn.Server, gate: "Gate") -> None:
    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                if server.should_exit:
                    server.force_exit = True
                server.should_exit = True
                _LOG.info("stopping")
                tasks.start_soon(_drain, server, gate)


async def _drain(server: uvicorn.Server, gate: "Gate") -> None:
    """Wait for calls, but not for notification streams that older clients keep open."""
    with anyio.move_on_after(_DRAIN_S):
        await gate.no_calls.wait()
    server.force_exit = True


def _manager(each: Listening, policy: HttpPolicy) -> StreamableHTTPSessionManager:
    host, port = each.address
    own = {f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
    if is_loopback(host):
        own |= {f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"}
    return StreamableHTTPSessionManager(
        each.server,
        security_settings=TransportSecuritySettings(
            allowed_hosts=[*sorted(own), *policy.hosts], allowed_origins=list(policy.origins)
        ),
        session_idle_timeout=policy.session_idle_s,
        max_request_body_size=policy.body_bytes,
        max_sessions=_MOST_SESSIONS,
    )


class Gate:
    """Authenticates requests, and routes each to the server of its port."""

    def __init__(
        self,
        by_port: Mapping[int, ASGIApp],
        tokens: Reread[Tokens],
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
            await self._health()(scope, receive, send)
            return
        if scope["path"].rstrip("/") not in {PATH, ""}:
            await _refusal(404, f"the server is at {PATH}")(scope, receive, send)
            return
        tokens = self._tokens.current()
        self._needs_token = self._needs_token or bool(tokens)
        if self._needs_token:
            holder = tokens.holder(_bearer(Headers(scope=scope)))
            if not holder:
                _LOG.warning("refused a call from %s: no token, or a wrong one", scope["client"])
                await _refusal(401, "a bearer token is needed")(scope, receive, send)
                return
            # The transport binds a session to this user.
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=holder, scopes=[]))
        with self._counted(scope["method"]):
            await self._by_port[scope["server"][1]](scope, receive, send)

    def _health(self) -> Response:
        """Answer whether programs can run now; unauthenticated, so it gives no details."""
        trouble = self._trouble()
        body = json.dumps({"status": "unavailable" if trouble else "ok"})
        return Response(body, status_code=503 if trouble else 200, media_type="application/json")

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


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _refusal(status: int, why: str) -> Response:
    headers = {"WWW-Authenticate": 'Bearer realm="assay"'} if status == 401 else {}  # noqa: PLR2004 - HTTP
    body = json.dumps({"error": why})
    return Response(body, status_code=status, media_type="application/json", headers=headers)
