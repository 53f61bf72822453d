"""FastAPI dependencies: the server state, and callers with read, write or admin rights."""

from typing import Annotated, cast

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import Scope

from assay.server.api.problems import request_id
from assay.server.app_state import ServerState
from assay.server.db.models import Caller
from assay.server.errors import RequestRejectedError


def hosting_of(request: Request) -> ServerState:
    """Return the server state behind this application."""
    return cast("ServerState", request.app.state.hosting)


Server = Annotated[ServerState, Depends(hosting_of)]


async def identify(house: ServerState, headers: Headers, scope: Scope) -> Caller:
    """Identify the caller and count the request; the guard calls this before it reads the body.

    Raises:
        RequestRejectedError: If the headers give no access.
    """
    try:
        caller = await house.access.identify(headers.get("authorization", ""))
    except RequestRejectedError:
        client = scope.get("client")
        address = client[0] if client else ""
        # Requests beyond this count are not logged either, so that they cannot fill the log.
        house.quotas.count_unauthenticated(address)
        name = scope.get("state", {}).get("request_id", "")
        await house.audit_rejected(headers.get("authorization", ""), address, request=name)
        raise
    house.quotas.count_request(caller)
    return caller


async def identified(request: Request) -> Caller:
    """Return the caller that the guard has authenticated."""
    return cast("Caller", request.state.caller)


ReadAccess = Annotated[Caller, Depends(identified)]


async def identify_writer(request: Request, house: Server, caller: ReadAccess) -> Caller:
    """Require a caller with write access."""
    if not caller.may_write:
        await _refuse(request, house, caller)
    return caller


async def identify_admin(request: Request, house: Server, caller: ReadAccess) -> Caller:
    """Require an admin."""
    if caller.role != "admin":
        await _refuse(request, house, caller)
    return caller


WriteAccess = Annotated[Caller, Depends(identify_writer)]
Admin = Annotated[Caller, Depends(identify_admin)]


async def _refuse(request: Request, house: Server, caller: Caller) -> None:
    action = f"{request.method} {request.url.path}"
    name = request_id(request)
    await house.audit(caller, action[:200], outcome="forbidden", request=name)
    raise RequestRejectedError(f"the role {caller.role!r} may not do this", why="forbidden")
