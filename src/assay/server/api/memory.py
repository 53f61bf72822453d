"""`/v1/memory`: the failure memory of the caller's own runs."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field

from assay.contracts.jsonable import jsonable
from assay.memory.snippets import SnippetRecord
from assay.server.api.dependencies import ReadAccess, Server, WriteAccess
from assay.server.api.problems import documented, request_id
from assay.server.api.schemas import text_of
from assay.server.services.memory_service import Remembered

router = APIRouter(prefix="/v1/memory", tags=["memory"], responses=documented(404))

RecordId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,128}$", examples=["5f1c9a"])]


class MemoryShape(BaseModel):
    """A failure with its lesson, or a snippet from an earlier run."""

    what: Literal["failure", "skill"]
    id: str
    last_seen: float = Field(description="Seconds since the epoch")
    worth: float
    retired: str | None = Field(description="Why it is recalled no more")
    fields: dict[str, Any] = Field(description="All that is kept of it")


class MemoryList(BaseModel):
    """Entries of the failure memory."""

    records: list[MemoryShape]


class MemoryStats(BaseModel):
    """Number of entries, and how they were used."""

    records: int
    with_lesson: int
    failures: int
    repeats: int
    used: int
    helped: int
    harmed: int
    skills: int


@router.get("")
async def list_memory(
    house: Server,
    caller: ReadAccess,
    query: Annotated[str, Query(max_length=1000)] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 20,
) -> MemoryList:
    """List entries of the failure memory: the newest, or those that fit a query best."""
    found = await house.memories.list(caller.user, query, limit)
    return MemoryList(records=[_shape(one) for one in found])


@router.get("/stats")
async def memory_stats(house: Server, caller: ReadAccess) -> MemoryStats:
    """Count entries of the failure memory, and how they were used."""
    known = asdict(await house.memories.stats(caller.user))
    return MemoryStats(**{name: known[name] for name in MemoryStats.model_fields})


@router.get("/{record_id}")
async def show_memory(house: Server, caller: ReadAccess, record_id: RecordId) -> MemoryShape:
    """Show one failure or snippet."""
    return _shape(await house.memories.find(caller.user, record_id))


@router.delete("/{record_id}", status_code=204)
async def forget_memory(
    request: Request, house: Server, caller: WriteAccess, record_id: RecordId
) -> None:
    """Delete one entry for good."""
    await house.memories.forget(caller.user, record_id)
    await house.audit(caller, "memory.forget", record_id, request=request_id(request))


def _shape(record: Remembered) -> MemoryShape:
    fields: dict[str, Any] = jsonable(record)
    return MemoryShape(
        what="skill" if isinstance(record, SnippetRecord) else "failure",
        id=record.id,
        last_seen=record.last_seen,
        worth=round(record.worth, 3),
        retired=record.retired or None,
        fields={
            name: text_of(value) if isinstance(value, str) else value
            for name, value in fields.items()
        },
    )
