"""`/v1/memory`: the failure memory of the caller's own runs."""

from collections.abc import Callable
from contextlib import closing
from typing import Annotated, Any, Literal, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field

from assay.contracts.jsonable import jsonable
from assay.memory.database import MEMORY
from assay.memory.history import History, history_of
from assay.memory.ranking import search, search_snippets
from assay.memory.snippets import SnippetRecord
from assay.memory.sqlite_store import SqliteStore
from assay.memory.types import FailureRecord
from assay.server.api.dependencies import ReadAccess, Server, WriteAccess
from assay.server.api.problems import documented, request_id
from assay.server.api.schemas import Out, text_of
from assay.server.app_state import ServerState
from assay.server.auth import settings_of
from assay.server.db.models import Caller
from assay.server.errors import not_found

T = TypeVar("T")
router = APIRouter(prefix="/v1/memory", tags=["memory"], responses=documented(404))

RecordId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,128}$", examples=["5f1c9a"])]


class MemoryShape(BaseModel):
    """A failure with its lesson, or a snippet from an earlier run."""

    what: Literal["failure", "snippet"]
    id: str
    last_seen: float = Field(description="Seconds since the epoch")
    worth: float
    retired: str | None = Field(description="Why it is recalled no more")
    fields: dict[str, Any] = Field(description="All that is kept of it")


class MemoryList(BaseModel):
    """Entries of the failure memory."""

    records: list[MemoryShape]


class MemoryStats(Out):
    """Number of entries, and how they were used."""

    records: int
    with_lesson: int
    failures: int
    repeats: int
    used: int
    helped: int
    harmed: int
    snippets: int


async def _read(
    server: ServerState, caller: Caller, work: Callable[[SqliteStore], T], nothing: T
) -> T:
    """Run work on the failure memory of a user, in a thread; without a memory, return `nothing`."""
    path = settings_of(server.settings, caller.user).state_dir / MEMORY

    def run() -> T:
        if not path.exists():
            return nothing
        with closing(SqliteStore(path, None)) as store:
            return work(store)

    return await to_thread.run_sync(run)


async def _find(
    server: ServerState, caller: Caller, record_id: str
) -> FailureRecord | SnippetRecord:
    def read(store: SqliteStore) -> FailureRecord | SnippetRecord | None:
        known = (*store.find(record_id), *store.snippets())
        return next((one for one in known if one.id == record_id), None)

    found = await _read(server, caller, read, None)
    if found is None:
        raise not_found("memory", record_id)
    return found


@router.get("")
async def list_memory(
    server: Server,
    caller: ReadAccess,
    query: Annotated[str, Query(max_length=1000)] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 20,
) -> MemoryList:
    """List entries of the failure memory: the newest, or those that fit a query best."""

    def read(store: SqliteStore) -> tuple[FailureRecord | SnippetRecord, ...]:
        if not query.strip():
            return (*store.records(limit=limit), *store.snippets())[:limit]
        failures = [near.record for near in search(store, query, limit)]
        snippets = [record for record, _ in search_snippets(store.snippets(), query, limit)]
        return (*failures, *snippets)[:limit]

    found = await _read(server, caller, read, ())
    return MemoryList(records=[_shape(one) for one in found])


@router.get("/stats", response_model=MemoryStats)
async def memory_stats(server: Server, caller: ReadAccess) -> History:
    """Count entries of the failure memory, and how they were used."""

    def read(store: SqliteStore) -> History:
        return history_of(store.records(), store.occurrences(), store.snippets())

    return await _read(server, caller, read, history_of((), ()))


@router.get("/{record_id}")
async def show_memory(server: Server, caller: ReadAccess, record_id: RecordId) -> MemoryShape:
    """Show one failure or snippet."""
    return _shape(await _find(server, caller, record_id))


@router.delete("/{record_id}", status_code=204)
async def forget_memory(
    request: Request, server: Server, caller: WriteAccess, record_id: RecordId
) -> None:
    """Delete one entry for good."""
    await _find(server, caller, record_id)
    await _read(server, caller, lambda store: store.forget([record_id]), 0)
    await server.audit(caller, "memory.forget", record_id, request=request_id(request))


def _shape(record: FailureRecord | SnippetRecord) -> MemoryShape:
    fields: dict[str, Any] = jsonable(record)
    return MemoryShape(
        what="snippet" if isinstance(record, SnippetRecord) else "failure",
        id=record.id,
        last_seen=record.last_seen,
        worth=round(record.worth, 3),
        retired=record.retired or None,
        fields={
            name: text_of(value) if isinstance(value, str) else value
            for name, value in fields.items()
        },
    )
