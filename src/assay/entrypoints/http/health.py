"""`/healthz` and `/readyz`: whether the process lives, and whether it can be given work."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from assay.entrypoints.http.callers import House
from assay.entrypoints.http.problems import documented
from assay.hosting.refusing import RefusedError

router = APIRouter(tags=["operations"])


class Health(BaseModel):
    """How it is."""

    status: Literal["ok"] = "ok"


@router.get("/healthz")
async def is_alive() -> Health:
    """Say that the process answers."""
    return Health()


@router.get("/readyz", responses={503: documented()[503]})
async def is_ready(house: House) -> Health:
    """Say whether requests are taken: not while it ends, and not without its database."""
    if house.draining:
        raise RefusedError("the service is ending", why="overloaded")
    await house.store.check()
    return Health()
