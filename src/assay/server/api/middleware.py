"""Request guard: assigns request IDs, and rejects foreign, oversized and slow requests.

Plain ASGI, so that streams pass through unchanged.
"""

import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assay.contracts.errors import AssayError
from assay.server.api.problems import Fault, fault_of, problem
from assay.server.db.models import Caller
from assay.settings.sections import ServeSettings

REQUEST_ID: Final = ContextVar("request_id", default="")
"""ID of the current request."""

_LOG: Final = logging.getLogger("assay.http")
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""Content types that a foreign page can send without a CORS preflight."""
_WITH_KEY: Final = ("/v1", "/chat", "/metrics")
"""Path prefixes that need authentication."""
_FOREIGN_ORIGIN: Final = Fault(status=403, kind="foreign-origin", detail="Origin not allowed.")
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCompleted:
    """A finished request and its response, for metrics and traces."""

    method: str
    route: str
    """The path template, so that it has few values; empty if there is none."""
    status: int
    duration_s: float
    caller_trace: str = ""
    """Trace context of the client, as in the header `traceparent`."""


Identify = Callable[[Headers, Scope], Awaitable[Caller]]
"""Returns the caller of a request; raises `AssayError` if the headers give no access."""


class RequestGuard:
    """ASGI middleware that wraps the application."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServeSettings,
        identify: Identify,
        on_completed: Callable[[RequestCompleted], None],
    ) -> None:
        self._app = app
        self._identify = identify
        self._settings = settings
        self._on_completed = on_completed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = given if _ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = name
        mark = REQUEST_ID.set(name)
        began = time.perf_counter()
        exchange = _Exchange(scope, receive, send, self._settings, name)
        try:
            fault = self._find_fault(scope, headers) or await self._authenticate(scope, headers)
            if fault is not None:
                response = problem(fault, request_id=name, path=scope["path"])
                if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
                    # The body was not read, so no other request can follow on this connection.
                    response.headers["connection"] = "close"
                await response(scope, receive, exchange.send)
            else:
                await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:  # noqa: BLE001 - outermost handler; the response was sent
            if not isinstance(error, _TooSlow):
                _LOG.critical("%s", error, extra={"request_id": name}, exc_info=error)
                return
            _LOG.warning("a client takes in too little of its answer", extra={"request_id": name})
        finally:
            self._note(scope, exchange.status, time.perf_counter() - began, name)
            REQUEST_ID.reset(mark)

    async def _authenticate(self, scope: Scope, headers: Headers) -> Fault | None:
        """Authenticate the caller before the request body is read."""
        if scope["method"] == "OPTIONS" or not scope["path"].startswith(_WITH_KEY):
            return None
        try:
            caller = await self._identify(headers, scope)
        except AssayError as error:
            return fault_of(error, for_admin=False)
        scope["state"].update(caller=caller, user=caller.user)
        return None

    def _find_fault(self, scope: Scope, headers: Headers) -> Fault | None:
        host = headers.get("host", "")
        if not self._is_known_host(host):
            return Fault(
                status=421,
                kind="foreign-host",
                detail="Host name not allowed.",
                hint="Add it to `serve.allowed_hosts`.",
            )
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed_origin(origin, host):
            return _FOREIGN_ORIGIN
        if headers.get("sec-fetch-site") == "cross-site" and origin is None:
            changing = scope["method"] in _CHANGING
            if changing or scope["path"].startswith(("/v1", "/chat")):
                return _FOREIGN_ORIGIN
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] in _CHANGING and origin is None and kind in _FORMS:
            return Fault(
                status=415,
                kind="unsupported-media-type",
                detail="Unsupported content type; send `application/json`.",
            )
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > (limit := body_limit(scope, self._settings)):
            detail = f"The body may have at most {limit:,} bytes."
            return Fault(status=413, kind="too-large", detail=detail)
        return None

    def _is_known_host(self, host: str) -> bool:
        # A page of a foreign site uses its own host name (DNS rebinding), never an IP address.
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if {name, host} & {"localhost", *self._settings.allowed_hosts}:
                return True
            ip_address(name)
        except ValueError:
            return False
        return True

    def _is_allowed_origin(self, origin: str, host: str) -> bool:
        if origin in self._settings.cors_origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in {"http", "https"} and parts.netloc.lower() == host.lower()

    def _note(self, scope: Scope, status: int, duration_s: float, name: str) -> None:
        route: Any = scope.get("route")
        template = str(getattr(route, "path", "")) if route else ""
        self._on_completed(
            RequestCompleted(
                method=scope["method"],
                route=template,
                status=status,
                duration_s=duration_s,
                caller_trace=Headers(scope=scope).get("traceparent", ""),
            )
        )
        state: Mapping[str, Any] = scope.get("state", {})
        fields = {
            "request_id": name,
            "method": scope["method"],
            "route": template,
            "status": status,
            "duration_ms": round(duration_s * 1000, 1),
            "user": state.get("user", ""),
        }
        _LOG.info("answered", extra=fields)


class _TooSlow(Exception):  # noqa: N818 - ends a request, and never leaves this module
    pass


class _Exchange:
    """One request and its response, with limits on size and time."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, settings: ServeSettings, name: str
    ) -> None:
        self._receive = receive
        self._send = send
        self._client_timeout_s = settings.client_timeout_s
        self._deadline = anyio.current_time() + settings.body_s
        self._limit = body_limit(scope, settings)
        self._name = name
        self._taken = 0
        self._whole = False
        self.status = 0

    async def receive(self) -> Message:
        if self._whole:
            # After this, only the end of the connection can follow.
            return await self._receive()
        wait_s = min(self._client_timeout_s, self._deadline - anyio.current_time())
        try:
            with anyio.fail_after(max(0.0, wait_s)):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "The body did not arrive in time.") from None
        if message["type"] == "http.request":
            self._taken += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._taken > self._limit:
                raise HTTPException(413, f"The body may have at most {self._limit:,} bytes.")
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self._name
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        with anyio.move_on_after(self._client_timeout_s) as waiting:
            await self._send(message)
        if waiting.cancelled_caught:
            raise _TooSlow


def body_limit(scope: Scope, settings: ServeSettings) -> int:
    """Return the maximum size of a request body."""
    upload = scope["method"] == "PUT" and "/files/" in scope["path"]
    return settings.upload_bytes if upload else settings.body_bytes
