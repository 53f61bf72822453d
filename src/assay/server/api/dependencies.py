"""Who sends a request, as endpoints ask for it: somebody, somebody who may write, an admin."""

from typing import Annotated, cast

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import Scope

from assay.server.api.problems import request_id
from assay.server.app_state import ServerState
from assay.server.db.models import Caller
from assay.server.errors import RequestRejectedError


def hosting_of(request: Request) -> ServerState:
    """Return the service that this application stands in front of."""
    return cast("ServerState", request.app.state.hosting)


Server = Annotated[ServerState, Depends(hosting_of)]


async def identify(house: ServerState, headers: Headers, scope: Scope) -> Caller:
    """Return who sends a request, and count the request; the guard asks before the body is read.

    Raises:
        RefusedError: If nobody may who sends these headers.
    """
    try:
        caller = await house.access.identify(headers.get("authorization", ""))
    except RequestRejectedError:
        client = scope.get("client")
        address = client[0] if client else ""
        # Beyond what is counted here, nothing is written either.
        house.quotas.count_unauthenticated(address)
        name = scope.get("state", {}).get("request_id", "")
        await house.audit_rejected(headers.get("authorization", ""), address, request=name)
        raise
    house.quotas.count_request(caller)
    return caller


async def identified(request: Request) -> Caller:
    """Return whom the guard has let in."""
    return cast("Caller", request.state.caller)


ReadAccess = Annotated[Caller, Depends(identified)]


async def identify_writer(request: Request, house: Server, caller: ReadAccess) -> Caller:
    """Let somebody in who may change something."""
    if not caller.may_write:
        await _refuse(request, house, caller)
    return caller


async def identify_admin(request: Request, house: Server, caller: ReadAccess) -> Caller:
    """Let somebody in who may look after keys."""
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
