"""`/v1/runs`: runs in the background, with their events, files and certificates.

`POST /v1/certificates/check` checks a certificate without running anything.
"""

from typing import Literal, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from pydantic import Field

from assay.contracts.errors import JournalError
from assay.contracts.goal import RunRequest
from assay.runs.request import build_request
from assay.server.api.dependencies import ReadAccess, Server, WriteAccess
from assay.server.api.problems import documented, request_id
from assay.server.api.schemas import (
    Before,
    Cancelled,
    CleanText,
    DiffShape,
    FileList,
    FilePath,
    FileShape,
    Limit,
    Name,
    NewRun,
    Out,
    RunDetails,
    RunList,
    RunShape,
    details_of,
    text_of,
    workspace_path,
)
from assay.server.api.sse import STREAMED, After, Follow, SseResponse, stream_events
from assay.server.app_state import ServerState
from assay.server.db.models import UNFINISHED, Caller, Page, RunRow
from assay.server.errors import not_found
from assay.server.services.shared_resources import check_usable
from assay.storage.certificates import certificate_of

N = TypeVar("N", int, float)
router = APIRouter(prefix="/v1/runs", tags=["runs"], responses=documented(404))


@router.get("", response_model=RunList)
async def list_runs(
    server: Server, caller: ReadAccess, limit: Limit = 50, before: Before = None
) -> dict[str, tuple[RunRow, ...]]:
    """List runs, the newest first."""
    return {"runs": await server.runs.list(caller.user, Page(limit=limit, before=before))}


@router.post("", status_code=201)
async def create_run(
    request: Request, server: Server, caller: WriteAccess, new: NewRun
) -> RunDetails:
    """Start a run on files in the request body."""
    model = await check_usable(new.model, caller, server.settings)
    asked = _request(server, caller, new, model or server.settings.models.default)
    row = await server.runs.create(caller, asked, new.contents())
    await server.audit(caller, "run.create", row.id, request=request_id(request))
    return await _details(server, caller, row.id)


@router.get("/{run_id}")
async def show_run(server: Server, caller: ReadAccess, run_id: Name) -> RunDetails:
    """Show a run: plan, attempts, test results by attempt, and usage."""
    return await _details(server, caller, run_id)


@router.delete("/{run_id}", status_code=204, responses=documented(404, 409))
async def delete_run(request: Request, server: Server, caller: WriteAccess, run_id: Name) -> None:
    """Delete a run that is not in progress, with all its files."""
    await server.runs.delete(caller.user, run_id)
    await server.audit(caller, "run.delete", run_id, request=request_id(request))


@router.post("/{run_id}/cancel", status_code=202)
async def cancel_run(
    request: Request, server: Server, caller: WriteAccess, run_id: Name
) -> Cancelled:
    """Stop a run. Its results are kept, and it can be resumed."""
    cancelled = await server.runs.cancel(caller.user, run_id)
    await server.audit(caller, "run.cancel", run_id, request=request_id(request))
    return Cancelled(cancelled=cancelled)


@router.post(
    "/{run_id}/resume", status_code=202, responses=documented(404, 409), response_model=RunShape
)
async def resume_run(request: Request, server: Server, caller: WriteAccess, run_id: Name) -> RunRow:
    """Resume a stopped run; Assay reuses the model's stored replies."""
    row = await server.runs.resume(caller, run_id)
    await server.audit(caller, "run.resume", run_id, request=request_id(request))
    return row


@router.get(
    "/{run_id}/events", response_class=SseResponse, responses={**documented(404), **STREAMED}
)
async def follow_run(
    server: Server,
    caller: ReadAccess,
    run_id: Name,
    after: After,
    follow: Follow = True,  # noqa: FBT002 - a query parameter
) -> SseResponse:
    """Stream the events of a run; the stream ends with the run, with an event `end`."""
    opening = server.runs.stream(await server.runs.find(caller.user, run_id))

    async def has_ended() -> bool:
        row = await server.store.run(caller.user, run_id)
        return row is None or row.status not in UNFINISHED

    return await stream_events(
        server, caller, opening, after=after, follow=follow, has_ended=has_ended
    )


@router.get("/{run_id}/diff")
async def show_diff(server: Server, caller: ReadAccess, run_id: Name) -> DiffShape:
    """Show the changes of a run so far."""
    row = await server.runs.find(caller.user, run_id)
    return DiffShape(diff=await server.runs.diff(row))


@router.get("/{run_id}/files")
async def list_files(server: Server, caller: ReadAccess, run_id: Name) -> FileList:
    """List the current files of a run; after its end, those of the accepted or best state."""
    row = await server.runs.find(caller.user, run_id)
    tree = await server.runs.tree(row)
    return FileList(
        files=[
            FileShape(path=text_of(str(path)), size_bytes=file.size)
            for path, file in sorted(tree.files.items())
        ]
    )


@router.get("/{run_id}/files/{path:path}", response_class=Response)
async def get_file(server: Server, caller: ReadAccess, run_id: Name, path: FilePath) -> Response:
    """Download a file of a run."""
    row = await server.runs.find(caller.user, run_id)
    file_path = workspace_path(path)
    file = (await server.runs.tree(row)).files.get(file_path)
    if file is None:
        raise not_found("file", path)
    headers = {"content-disposition": "attachment"}
    return Response(file.content, media_type="application/octet-stream", headers=headers)


@router.get("/{run_id}/certificate", response_class=Response)
async def get_certificate(server: Server, caller: ReadAccess, run_id: Name) -> Response:
    """Download the certificate of an accepted run; `assay verify` repeats its checks."""
    row = await server.runs.find(caller.user, run_id)
    content = await server.runs.certificate(row)
    name = f'attachment; filename="{row.id}.certificate.json"'
    return Response(content, media_type="application/json", headers={"content-disposition": name})


async def _details(server: ServerState, caller: Caller, run_id: str) -> RunDetails:
    row = await server.runs.find(caller.user, run_id)
    asked = await server.runs.asked(row)
    return details_of(row, await server.runs.progress(row), asked)


def _request(server: ServerState, caller: Caller, new: NewRun, model: str) -> RunRequest:
    settings, budget = server.settings, new.budget
    usual_s, caps = settings.agent.timeout_s, settings.models.budget
    return build_request(
        settings,
        new.goal,
        checks=new.checks(),
        tests=tuple(new.tests),
        model=model,
        attempts=budget.attempts,
        wall_s=min(budget.wall_s or usual_s, usual_s),
        budget_usd=_least(budget.usd, caps.usd, caller.quota.usd_per_day),
        budget_tokens=_least(budget.tokens, caps.tokens, caller.quota.tokens_per_day),
    )


def _least(*caps: N | None) -> N | None:
    return min((cap for cap in caps if cap is not None), default=None)


certificates_router = APIRouter(prefix="/v1/certificates", tags=["runs"], responses=documented())


class CertificateShape(Out):
    """Content of a certificate, and whether its signature is valid."""

    signature: Literal["valid", "invalid"]
    key: str | None = Field(default=None, description="Public half of the key that signed it")
    run: str | None = None
    goal: CleanText | None = None
    grade: str | None = None
    issued_at: str | None = None
    model: CleanText | None = None
    files: list[CleanText] = Field(default_factory=list[str])
    note: str = Field(description="What this does and does not mean")


_MODIFIED = "The certificate was modified after it was signed."
_VALID = (
    "It is what was signed with this key. Whether the files are still those, and pass, "
    "`assay verify` finds out."
)


@certificates_router.post(
    "/check",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    },
)
async def check_certificate(request: Request, caller: ReadAccess) -> CertificateShape:
    """Check the signature of a certificate in the request body."""
    del caller
    content = await request.body()
    try:
        found = await to_thread.run_sync(certificate_of, content, "the body")
    except JournalError:
        return CertificateShape(signature="invalid", note=_MODIFIED)
    return CertificateShape(
        signature="valid",
        key=found.key,
        run=found.run,
        goal=found.goal,
        grade=found.grade.value,
        issued_at=found.issued_at,
        model=found.model,
        files=[str(path) for path in found.files],
        note=_VALID,
    )
