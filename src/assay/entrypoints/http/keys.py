"""`/v1/keys` and `/v1/audit`: for admins."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from assay.entrypoints.http.callers import Admin, House
from assay.entrypoints.http.problems import documented, request_id
from assay.entrypoints.http.words import Line
from assay.hosting.access import NewKey
from assay.hosting.records import AuditEntry, KeyRecord, Page, Role

router = APIRouter(prefix="/v1", tags=["admin"], responses=documented())

KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$", examples=["3f9a1c0b7d2e"])]
_MOST = 2**53


class KeyWish(BaseModel):
    """A key to make."""

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
    """A key, without the key itself."""

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
    """A key that was just made: this is the only time it is shown."""

    key: str = Field(examples=["assay_…"])


class KeyList(BaseModel):
    """All keys, the oldest first."""

    keys: list[KeyShape]


class AuditShape(BaseModel):
    """Something that somebody did, or was kept from."""

    id: str
    at: float
    user: str
    key_id: str
    action: str = Field(examples=["run.create"])
    target: str = Field(examples=["calm-heron-91c3"])
    outcome: str = Field(examples=["done"])
    request_id: str


class AuditList(BaseModel):
    """The audit log, the newest first."""

    entries: list[AuditShape]


@router.get("/keys")
async def list_keys(house: House, caller: Admin) -> KeyList:
    """List keys, without the keys themselves."""
    del caller
    return KeyList(keys=[KeyShape(**_fields(key)) for key in await house.keys.list()])


@router.post("/keys", status_code=201)
async def create_key(request: Request, house: House, caller: Admin, wish: KeyWish) -> NewKeyShape:
    """Make a key. As soon as there is one, nobody gets in without."""
    wanted = wish.model_copy(update={"user": wish.user or wish.name})
    record, key = await house.keys.create(NewKey(**wanted.model_dump()))
    await house.audit(caller, "key.create", record.id, request=request_id(request))
    return NewKeyShape(**_fields(record), key=key)


@router.delete("/keys/{key_id}", status_code=204, responses=documented(404))
async def revoke_key(request: Request, house: House, caller: Admin, key_id: KeyId) -> None:
    """Let a key work no more, from its next request on."""
    await house.keys.revoke(key_id)
    await house.audit(caller, "key.revoke", key_id, request=request_id(request))


@router.get("/audit")
async def read_audit(
    house: House,
    caller: Admin,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    before: Annotated[float | None, Query(allow_inf_nan=False)] = None,
) -> AuditList:
    """Read what was done, by whom, and what was refused."""
    del caller
    entries = await house.store.audit(Page(limit=limit, before=before))
    return AuditList(entries=[AuditShape(**_entry(entry)) for entry in entries])


def _fields(key: KeyRecord) -> dict[str, Any]:
    return {name: getattr(key, name) for name in KeyShape.model_fields}


def _entry(entry: AuditEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in AuditShape.model_fields}
