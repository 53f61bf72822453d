"""FastAPI dependencies: the server state, and callers with read, write or admin rights."""

from collections.abc import Awaitable, Callable
from typing import Annotated, cast

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import Scope

from assay.server.api.problems import request_id
from assay.server.app_state import ServerState
from assay.server.db.models import Caller, Role
from assay.server.errors import RequestRejectedError


def server_of(request: Request) -> ServerState:
    """Return the server state behind this application."""
    return cast("ServerState", request.app.state.server)


Server = Annotated[ServerState, Depends(server_of)]


async def identify(server: ServerState, headers: Headers, scope: Scope) -> Caller:
    """Identify the caller and count the request; the guard calls this before it reads the body.

    Raises:
        RequestRejectedError: If the headers give no access.
    """
    authorization = headers.get("authorization", "")
    try:
        caller = await server.access.identify(authorization)
    except RequestRejectedError:
        client = scope.get("client")
        address = client[0] if client else ""
        # Requests beyond this count are not logged either, so that they cannot fill the log.
        server.quotas.count_unauthenticated(address)
        name = scope.get("state", {}).get("request_id", "")
        await server.audit_rejected(authorization, address, request=name)
        raise
    server.quotas.count_request(caller)
    return caller


def _with_role(*roles: Role) -> Callable[[Request, ServerState], Awaitable[Caller]]:
    """Return a dependency that requires one of these roles."""

    async def check(request: Request, server: Server) -> Caller:
        # The guard has authenticated the caller.
        caller = cast("Caller", request.state.caller)
        if caller.role not in roles:
            action = f"{request.method} {request.url.path}"[:200]
            name = request_id(request)
            await server.audit(caller, action, outcome="forbidden", request=name)
            raise RequestRejectedError(f"the role {caller.role!r} may not do this", why="forbidden")
        return caller

    return check


ReadAccess = Annotated[Caller, Depends(_with_role("admin", "user", "read-only"))]
WriteAccess = Annotated[Caller, Depends(_with_role("admin", "user"))]
Admin = Annotated[Caller, Depends(_with_role("admin"))]
