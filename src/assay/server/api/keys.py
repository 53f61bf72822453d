"""`/v1/keys` and `/v1/audit`: API keys and the audit log, for admins."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from assay.server.api.dependencies import Admin, Server
from assay.server.api.field_types import Line
from assay.server.api.problems import documented, request_id
from assay.server.auth import NewKey
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


class KeyShape(BaseModel):
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


class KeyList(BaseModel):
    """All API keys, the oldest first."""

    keys: list[KeyShape]


class AuditShape(BaseModel):
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


class AuditList(BaseModel):
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


@router.get("/keys")
async def list_keys(house: Server, caller: Admin) -> KeyList:
    """List API keys, without their secrets."""
    del caller
    return KeyList(keys=[KeyShape(**_fields(key)) for key in await house.keys.list()])


@router.post("/keys", status_code=201)
async def create_key(
    request: Request, house: Server, caller: Admin, wish: KeyRequest
) -> NewKeyShape:
    """Create an API key. Once a key exists, access without a key ends."""
    wanted = wish.model_copy(update={"user": wish.user or wish.name})
    record, key = await house.keys.create(NewKey(**wanted.model_dump()))
    await house.audit(caller, "key.create", record.id, request=request_id(request))
    return NewKeyShape(**_fields(record), key=key)


@router.delete("/keys/{key_id}", status_code=204, responses=documented(404))
async def revoke_key(request: Request, house: Server, caller: Admin, key_id: KeyId) -> None:
    """Revoke an API key: requests with it fail from now on, and its open streams end."""
    await house.keys.revoke(key_id)
    await house.audit(caller, "key.revoke", key_id, request=request_id(request))
    await house.streams.end_revoked()


@router.get("/audit")
async def read_audit(
    house: Server,
    caller: Admin,
    asked: Annotated[AuditQuery, Query()],
) -> AuditList:
    """Read actions, executions and rejected requests, with the caller and the result of each."""
    del caller
    page = AuditPage(
        limit=asked.limit + 1,
        before=asked.before,
        since=asked.since,
        user=asked.user,
        action=asked.action,
        target=asked.target,
        after_entry=_place_of(asked.cursor),
    )
    found = await house.store.audit(page)
    entries = found[: asked.limit]
    more = len(found) > len(entries)
    return AuditList(
        entries=[AuditShape(**_entry(entry)) for entry in entries],
        next_cursor=f"{entries[-1].at!r}_{entries[-1].id}" if more else None,
    )


def _place_of(cursor: str | None) -> tuple[float, str] | None:
    if cursor is None:
        return None
    at, _, entry_id = cursor.partition("_")
    return float(at), entry_id


def _fields(key: KeyRecord) -> dict[str, Any]:
    return {name: getattr(key, name) for name in KeyShape.model_fields}


def _entry(entry: AuditEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in AuditShape.model_fields}
