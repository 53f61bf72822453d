"""Who sends a request, as endpoints ask for it: somebody, somebody who may write, an admin."""

from typing import Annotated, cast

from fastapi import Depends, Request

from assay.entrypoints.http.problems import request_id
from assay.hosting.hosting import Hosting
from assay.hosting.records import Caller
from assay.hosting.refusing import RefusedError


def hosting_of(request: Request) -> Hosting:
    """Return the service that this application stands in front of."""
    return cast("Hosting", request.app.state.hosting)


House = Annotated[Hosting, Depends(hosting_of)]


async def identify(request: Request, house: House) -> Caller:
    """Let somebody in who may, and count the request."""
    try:
        caller = await house.access.identify(request.headers.get("authorization", ""))
    except RefusedError:
        house.quotas.count_stranger(request.client.host if request.client else "")
        raise
    request.state.user = caller.user
    house.quotas.count_request(caller)
    return caller


Reader = Annotated[Caller, Depends(identify)]


async def identify_writer(request: Request, house: House, caller: Reader) -> Caller:
    """Let somebody in who may change something."""
    if not caller.may_write:
        await _refuse(request, house, caller)
    return caller


async def identify_admin(request: Request, house: House, caller: Reader) -> Caller:
    """Let somebody in who may look after keys."""
    if caller.role != "admin":
        await _refuse(request, house, caller)
    return caller


Writer = Annotated[Caller, Depends(identify_writer)]
Admin = Annotated[Caller, Depends(identify_admin)]


async def _refuse(request: Request, house: House, caller: Caller) -> None:
    action = f"{request.method} {request.url.path}"
    name = request_id(request)
    await house.audit(caller, action[:200], outcome="forbidden", request=name)
    raise RefusedError(f"the role {caller.role!r} may not do this", why="forbidden")
