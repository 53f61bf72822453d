"""`/v1/me`, `/v1/models`, `/v1/keys` and `/v1/audit`.

The caller, its quotas and the available models; for admins, API keys and the audit log.
"""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from assay.models.resolve import list_available
from assay.models.served import SURVEY_HEADER
from assay.server.api.dependencies import Admin, ReadAccess, Server
from assay.server.api.problems import documented, documented_openai, request_id
from assay.server.api.schemas import Line, Out
from assay.server.db.models import AuditEntry, AuditPage, KeyRecord, Role

router = APIRouter(prefix="/v1", tags=["admin"], responses=documented())

KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$", examples=["3f9a1c0b7d2e"])]
_MOST = 2**53


class KeyRequest(BaseModel):
    """An API key to create."""

    model_config = ConfigDict(extra="forbid")

    name: Line = Field(examples=["laptop"])
    user: Line | None = Field(
        default=None, description="Whose it is; null: as the name", examples=["ada"]
    )
    role: Role = "user"
    requests_per_minute: int | None = Field(default=None, ge=1, le=10**6)
    runs: int | None = Field(default=None, ge=1, le=1000)
    tokens_per_day: int | None = Field(default=None, ge=1, le=_MOST)
    usd_per_day: float | None = Field(default=None, ge=0, le=10**6)


class KeyShape(Out):
    """An API key without its secret."""

    id: str = Field(examples=["3f9a1c0b7d2e"])
    user: str = Field(examples=["ada"])
    name: str = Field(examples=["laptop"])
    role: Role
    created_at: float
    revoked_at: float | None
    last_used_at: float | None
    requests_per_minute: int | None
    runs: int | None
    tokens_per_day: int | None
    usd_per_day: float | None


class NewKeyShape(KeyShape):
    """A new API key with its secret, which is shown only this once."""

    key: str = Field(examples=["assay_…"])


class KeyList(Out):
    """All API keys, the oldest first."""

    keys: list[KeyShape]


class AuditShape(Out):
    """An action or a rejected request of a caller, or an execution and its result."""

    id: str
    at: float
    user: str
    key_id: str
    action: str = Field(examples=["run.create"])
    target: str = Field(examples=["calm-heron-91c3"])
    outcome: str = Field(examples=["done"])
    request_id: str
    part: str = Field(description="Of the session or run", examples=["turn 2, step 1"])
    model: str
    backend: str = Field(examples=["native"])
    code_sha256: str = Field(description="Of the code of a cell, or the files of an attempt")
    duration_s: float | None


class AuditList(Out):
    """Entries of the audit log, the newest first."""

    entries: list[AuditShape]
    next_cursor: str | None = Field(description="For the next page; null if this is the last")


class AuditQuery(BaseModel):
    """Filters for audit entries; an empty text does not filter."""

    limit: int = Field(default=100, ge=1, le=500)
    user: Line = ""
    action: Line = Field(default="", examples=["cell.run"])
    target: Line = Field(default="", description="A session, run, key or address")
    since: float | None = Field(default=None, allow_inf_nan=False, description="From then on")
    before: float | None = Field(default=None, allow_inf_nan=False)
    cursor: str | None = Field(
        default=None, pattern=r"^\d{1,12}(\.\d{1,9})?_[0-9a-f]{16}$", description="As `next_cursor`"
    )


@router.get("/keys", response_model=KeyList)
async def list_keys(server: Server, caller: Admin) -> dict[str, tuple[KeyRecord, ...]]:
    """List API keys, without their secrets."""
    del caller
    return {"keys": await server.store.keys()}


@router.post("/keys", status_code=201)
async def create_key(
    request: Request, server: Server, caller: Admin, wish: KeyRequest
) -> NewKeyShape:
    """Create an API key. Once a key exists, access without a key ends."""
    given: dict[str, Any] = wish.model_dump() | {"user": wish.user or wish.name}
    record, key = await server.keys.create(**given)
    await server.audit(caller, "key.create", record.id, request=request_id(request))
    return NewKeyShape(**asdict(record), key=key)


@router.delete("/keys/{key_id}", status_code=204, responses=documented(404))
async def revoke_key(request: Request, server: Server, caller: Admin, key_id: KeyId) -> None:
    """Revoke an API key: requests with it fail from now on, and its open streams end."""
    await server.keys.revoke(key_id)
    await server.audit(caller, "key.revoke", key_id, request=request_id(request))
    await server.subscriptions.end_revoked()


@router.get("/audit", response_model=AuditList)
async def read_audit(
    server: Server, caller: Admin, asked: Annotated[AuditQuery, Query()]
) -> dict[str, tuple[AuditEntry, ...] | str | None]:
    """Read actions, executions and rejected requests, with the caller and the result of each."""
    del caller
    at, _, entry_id = (asked.cursor or "").partition("_")
    # One more entry tells whether another page follows.
    page = AuditPage(
        **asked.model_dump(exclude={"cursor", "limit"}),
        limit=asked.limit + 1,
        after_entry=(float(at), entry_id) if at else None,
    )
    found = await server.store.audit(page)
    entries = found[: asked.limit]
    more = len(found) > len(entries)
    cursor = f"{entries[-1].at!r}_{entries[-1].id}" if more else None
    return {"entries": entries, "next_cursor": cursor}


me_router = APIRouter(prefix="/v1", tags=["about"], responses=documented())


class LimitsShape(Out):
    """Quotas of an API key; null is no cap."""

    requests_per_minute: int = Field(examples=[600])
    runs: int = Field(description="Maximum number of unfinished runs", examples=[4])
    tokens_per_day: int | None
    usd_per_day: float | None


class UsedShape(Out):
    """Usage of an API key today, by UTC days."""

    requests: int
    tokens: int
    cost_usd: float
    running: int = Field(description="Runs that are unfinished")


class Me(Out):
    """The caller."""

    user: str = Field(examples=["local"])
    role: Literal["admin", "user", "read-only"]
    key_name: str = Field(examples=["laptop"])
    auth: Literal["none", "key"] = Field(description="Whether a key was needed")
    limits: LimitsShape
    usage: UsedShape


class ModelShape(Out):
    """A model in the format of OpenAI's API."""

    id: str = Field(examples=["assay"])
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "assay"


class ModelList(Out):
    """Models in the format of OpenAI's API."""

    object: Literal["list"] = "list"
    data: list[ModelShape]


@me_router.get("/me")
async def who_am_i(server: Server, caller: ReadAccess) -> Me:
    """Show the caller, its quotas, and its usage today."""
    used = await server.quotas.used(caller)
    return Me(
        user=caller.user,
        role=caller.role,
        key_name=caller.key_name,
        auth="key" if caller.by_key else "none",
        limits=LimitsShape.model_validate(caller.quota),
        usage=UsedShape(
            requests=used.requests,
            tokens=used.tokens,
            cost_usd=used.cost_usd,
            running=await server.store.count_unfinished(caller.key_id),
        ),
    )


@me_router.get("/models", responses=documented_openai())
async def list_models(request: Request, server: Server, caller: ReadAccess) -> ModelList:
    """List models in the format of OpenAI's API; `assay` is the model of the settings."""
    del caller
    settings = server.settings
    names = list(settings.serve.models)
    if not names and SURVEY_HEADER not in request.headers:
        names = [one.name for one in await list_available(settings.models) if one.usable]
    ids = ["assay", *(f"assay:{name}" for name in dict.fromkeys(names))]
    return ModelList(data=[ModelShape(id=one) for one in ids])
