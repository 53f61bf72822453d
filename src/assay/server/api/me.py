"""`/v1/me` and `/v1/models`: the caller, its quotas, and the available models."""

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from assay.models.discover_servers import SURVEY_HEADER
from assay.models.resolve import list_available
from assay.server.api.dependencies import ReadAccess, Server
from assay.server.api.problems import documented, documented_openai

router = APIRouter(prefix="/v1", tags=["about"], responses=documented())


class LimitsShape(BaseModel):
    """Quotas of an API key; null is no cap."""

    requests_per_minute: int = Field(examples=[600])
    runs: int = Field(description="Maximum number of unfinished runs", examples=[4])
    tokens_per_day: int | None
    usd_per_day: float | None


class UsedShape(BaseModel):
    """Usage of an API key today, by UTC days."""

    requests: int
    tokens: int
    cost_usd: float
    running: int = Field(description="Runs that are unfinished")


class Me(BaseModel):
    """The caller."""

    user: str = Field(examples=["local"])
    role: Literal["admin", "user", "read-only"]
    key_name: str = Field(examples=["laptop"])
    auth: Literal["none", "key"] = Field(description="Whether a key was needed")
    limits: LimitsShape
    usage: UsedShape


class ModelShape(BaseModel):
    """A model in the format of OpenAI's API."""

    id: str = Field(examples=["assay"])
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "assay"


class ModelList(BaseModel):
    """Models in the format of OpenAI's API."""

    object: Literal["list"] = "list"
    data: list[ModelShape]


@router.get("/me")
async def who_am_i(house: Server, caller: ReadAccess) -> Me:
    """Show the caller, its quotas, and its usage today."""
    used, quota = await house.quotas.used(caller), caller.quota
    return Me(
        user=caller.user,
        role=caller.role,
        key_name=caller.key_name,
        auth="key" if caller.by_key else "none",
        limits=LimitsShape(
            requests_per_minute=quota.requests_per_minute,
            runs=quota.runs,
            tokens_per_day=quota.tokens_per_day,
            usd_per_day=quota.usd_per_day,
        ),
        usage=UsedShape(
            requests=used.requests,
            tokens=used.tokens,
            cost_usd=used.cost_usd,
            running=await house.store.count_unfinished(caller.key_id),
        ),
    )


@router.get("/models", responses=documented_openai())
async def list_models(request: Request, house: Server, caller: ReadAccess) -> ModelList:
    """List models in the format of OpenAI's API; `assay` is the model of the settings."""
    del caller
    settings = house.settings
    names = list(settings.serve.models)
    if not names and SURVEY_HEADER not in request.headers:
        names = [one.name for one in await list_available(settings.models) if one.usable]
    ids = ["assay", *(f"assay:{name}" for name in dict.fromkeys(names))]
    return ModelList(data=[ModelShape(id=one) for one in ids])
