"""`/v1/sessions`: chat sessions, their turns, events, files and artifacts.

`POST /chat` sends one message and returns the whole answer.
"""

import mimetypes
import stat
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse

from assay.contracts.chat import CellEnded, history_of
from assay.server.api.dependencies import ReadAccess, Server, WriteAccess
from assay.server.api.problems import TurnFailedError, documented, request_id
from assay.server.api.schemas import (
    ArtifactList,
    Before,
    Cancelled,
    ChatAnswer,
    ChatRequest,
    FileList,
    FilePath,
    FileShape,
    Limit,
    LoadedFile,
    MessageRequest,
    Name,
    NewSession,
    RenameRequest,
    SessionList,
    SessionShape,
    TurnBegun,
    Undone,
    answer_of,
    artifact_of,
    workspace_path,
)
from assay.server.api.sse import STREAMED, After, Follow, SseResponse, stream_events
from assay.server.db.models import Page, SessionRow
from assay.server.errors import not_found
from assay.server.services.shared_resources import check_usable
from assay.storage.chat_export import to_markdown, to_notebook
from assay.storage.chat_store import ARTIFACTS, FILES, read_session_events

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], responses=documented(404))
_PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Media types that a browser shows without running any code."""
_BYTES: Final = "application/octet-stream"


@router.get("", response_model=SessionList)
async def list_sessions(
    server: Server, caller: ReadAccess, limit: Limit = 50, before: Before = None
) -> dict[str, tuple[SessionRow, ...]]:
    """List sessions, the last used one first."""
    return {"sessions": await server.store.sessions(caller.user, Page(limit=limit, before=before))}


@router.post("", status_code=201, response_model=SessionShape)
async def create_session(
    request: Request, server: Server, caller: WriteAccess, new: NewSession
) -> SessionRow:
    """Create a session."""
    model = await check_usable(new.model, caller, server.settings)
    row = await server.chats.create(caller.user, new.title, model)
    await server.audit(caller, "session.create", row.id, request=request_id(request))
    return row


@router.get("/{session_id}", response_model=SessionShape)
async def show_session(server: Server, caller: ReadAccess, session_id: Name) -> SessionRow:
    """Show one session."""
    return await server.chats.find(caller.user, session_id)


@router.patch("/{session_id}", response_model=SessionShape)
async def rename_session(
    server: Server, caller: WriteAccess, session_id: Name, new: RenameRequest
) -> SessionRow:
    """Change the title of a session."""
    return await server.chats.rename(caller.user, session_id, new.title)


@router.delete("/{session_id}", status_code=204, responses=documented(404, 409))
async def delete_session(
    request: Request, server: Server, caller: WriteAccess, session_id: Name
) -> None:
    """Delete a session with all its files."""
    await server.chats.delete(caller.user, session_id)
    await server.audit(caller, "session.delete", session_id, request=request_id(request))


@router.post("/{session_id}/turns", status_code=202, responses=documented(404, 409))
async def begin_turn(
    server: Server, caller: WriteAccess, session_id: Name, new: MessageRequest
) -> TurnBegun:
    """Send a message. The answer arrives in the events of the session."""
    turn = await server.chats.begin_turn(caller, new.message, session_id=session_id)
    return TurnBegun(session_id=session_id, turn=turn.number)


@router.post("/{session_id}/cancel", status_code=202)
async def cancel_turn(server: Server, caller: WriteAccess, session_id: Name) -> Cancelled:
    """Cancel the running turn; the session continues."""
    ended = await server.chats.interrupt(caller.user, session_id)
    return Cancelled(cancelled=ended)


@router.post("/{session_id}/undo", responses=documented(404, 409))
async def undo_turn(server: Server, caller: WriteAccess, session_id: Name) -> Undone:
    """Undo the last turn and the effects of its code."""
    undone = await server.chats.undo(caller.user, session_id)
    return Undone(turn=undone.turn)


@router.get(
    "/{session_id}/events", response_class=SseResponse, responses={**documented(404), **STREAMED}
)
async def follow_session(
    server: Server,
    caller: ReadAccess,
    session_id: Name,
    after: After,
    follow: Follow = True,  # noqa: FBT002 - a query parameter
) -> SseResponse:
    """Stream the events of a session, from the start or after an event."""
    opening = server.chats.stream(caller.user, session_id)
    return await stream_events(server, caller, opening, after=after, follow=follow)


@router.get("/{session_id}/files")
async def list_files(server: Server, caller: ReadAccess, session_id: Name) -> FileList:
    """List the files that were added to the workspace."""
    home = await server.chats.folder(caller.user, session_id) / FILES
    return FileList(files=await to_thread.run_sync(_files_in, home))


@router.put(
    "/{session_id}/files/{path:path}",
    status_code=201,
    responses=documented(404, 409),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {_BYTES: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def put_file(
    request: Request, server: Server, caller: WriteAccess, session_id: Name, path: FilePath
) -> LoadedFile:
    """Add a file to the workspace, where the code of the session finds it."""
    file_path = workspace_path(path)
    content = await request.body()
    loaded = await server.chats.load(caller.user, session_id, file_path, content)
    return LoadedFile.model_validate(loaded)


@router.get("/{session_id}/files/{path:path}", response_class=FileResponse)
async def get_file(
    server: Server, caller: ReadAccess, session_id: Name, path: FilePath
) -> Response:
    """Download a file that was added to the workspace."""
    home = await server.chats.folder(caller.user, session_id) / FILES
    return await _attached(home, workspace_path(path))


@router.get("/{session_id}/artifacts")
async def list_artifacts(server: Server, caller: ReadAccess, session_id: Name) -> ArtifactList:
    """List the figures, tables and files that the session produced."""
    folder = await server.chats.folder(caller.user, session_id)
    events = await to_thread.run_sync(read_session_events, folder)
    cells = [event for event in events if isinstance(event, CellEnded)]
    made = [artifact_of(one, session_id) for cell in cells for one in cell.artifacts]
    return ArtifactList(artifacts=made)


@router.get("/{session_id}/artifacts/{name}", response_class=FileResponse)
async def get_artifact(
    server: Server, caller: ReadAccess, session_id: Name, name: FilePath
) -> Response:
    """Download an artifact. A browser may show images inline, and only saves other types."""
    folder = await server.chats.folder(caller.user, session_id)
    response = await _attached(folder / ARTIFACTS, workspace_path(name))
    kind = mimetypes.guess_type(name)[0]
    if kind in _PICTURES:
        response.headers["content-type"] = kind
        response.headers["content-disposition"] = "inline"
    response.headers["content-security-policy"] = "default-src 'none'; sandbox"
    return response


@router.get("/{session_id}/export", response_class=Response)
async def export_session(
    server: Server,
    caller: ReadAccess,
    session_id: Name,
    format: Annotated[Literal["ipynb", "markdown"], Query()] = "ipynb",  # noqa: A002 - a query parameter
) -> Response:
    """Download a session as a notebook or as Markdown."""
    folder = await server.chats.folder(caller.user, session_id)
    content = await to_thread.run_sync(_exported, folder, format)
    suffix = "ipynb" if format == "ipynb" else "md"
    kind = "application/x-ipynb+json" if format == "ipynb" else "text/markdown"
    headers = {"content-disposition": f'attachment; filename="{session_id}.{suffix}"'}
    return Response(content, media_type=kind, headers=headers)


def _files_in(home: Path) -> list[FileShape]:
    found = [
        file_path
        for file_path in home.rglob("*")
        if file_path.is_file() and not file_path.is_symlink()
    ]
    return [
        FileShape(path=str(file_path.relative_to(home)), size_bytes=file_path.stat().st_size)
        for file_path in sorted(found)
    ]


async def _attached(home: Path, path: PurePosixPath) -> FileResponse:
    """Return a file that a browser saves, regardless of its content."""
    file_path = home / path
    try:
        status = await to_thread.run_sync(file_path.lstat)
    except OSError:
        raise not_found("file", str(path)) from None
    if not stat.S_ISREG(status.st_mode):
        raise not_found("file", str(path))
    return FileResponse(file_path, media_type=_BYTES, filename=file_path.name)


def _exported(folder: Path, export_format: str) -> bytes:
    history = history_of(read_session_events(folder))
    if export_format == "markdown":
        text = to_markdown(history)
    else:
        home = folder / ARTIFACTS
        text = to_notebook(history, lambda made: (home / made.name).read_bytes())
    return text.encode("utf-8", "replace")


chat_router = APIRouter(tags=["chat"])


@chat_router.post("/chat", responses=documented(404, 409, 500, 502))
async def chat(
    request: Request, server: Server, caller: WriteAccess, asked: ChatRequest
) -> ChatAnswer:
    """Send a message and wait for the answer, in an existing or a new session."""
    model = "" if asked.session_id else await check_usable(asked.model, caller, server.settings)
    handle = await server.chats.begin_turn(
        caller,
        asked.message,
        session_id=asked.session_id,
        model=model,
        request_id=request_id(request),
    )
    turn, usage = await handle.finish()
    if turn.status == "failed":
        raise TurnFailedError(turn.error, handle.session_id, turn.number)
    return answer_of(turn, handle.session_id, usage)
