"""`/healthz` and `/readyz`: whether the process runs, and whether it can accept work."""

from typing import Any, Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from assay.contracts.errors import AssayError
from assay.server.api.dependencies import Server
from assay.server.app_state import ServerState
from assay.server.services.health import PARTS

router = APIRouter(tags=["operations"])

_NEEDED: Final = frozenset({"database", "executor"})
"""Components without which the service cannot answer requests."""


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """Readiness of the service, by component."""

    status: Literal["ready", "degraded"]
    checks: dict[str, Literal["ok", "failed"]] = Field(
        examples=[{"database": "ok", "executor": "ok", "model": "ok"}]
    )
    details: dict[str, str] | None = Field(
        default=None, description="What is wrong; only for admins"
    )


_UNREADY: Final[dict[int | str, dict[str, Any]]] = {
    503: {"model": Readiness, "description": "It is ending, or a part that it needs fails"}
}


@router.get("/healthz")
async def is_alive() -> Alive:
    """Report that the process answers."""
    return Alive()


@router.get("/readyz", responses=_UNREADY, response_model_exclude_none=True)
async def is_ready(request: Request, response: Response, house: Server) -> Readiness:
    """Check the database, the executor and the model.

    The status is 503 during shutdown, and if the database or the executor fails.
    """
    troubles = await house.health.troubles()
    failed = {part: trouble for part, trouble in troubles.items() if trouble}
    if house.draining or _NEEDED & failed.keys():
        response.status_code = 503
    details = dict[str, str](failed)
    if house.draining:
        details["shutdown"] = "the service is ending"
    show = bool(details) and await _is_admin(request, house)
    return Readiness(
        status="degraded" if details else "ready",
        checks={part: "failed" if part in failed else "ok" for part in PARTS},
        details=details if show else None,
    )


async def _is_admin(request: Request, house: ServerState) -> bool:
    try:
        caller = await house.access.identify(request.headers.get("authorization", ""))
    except AssayError:
        return False
    return caller.role == "admin"
