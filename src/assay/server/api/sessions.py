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

from assay.contracts.chat import CellEnded, Exhibit, history_of
from assay.server.api.dependencies import ReadAccess, Server, WriteAccess
from assay.server.api.problems import TurnFailedError, documented, request_id
from assay.server.api.schemas import (
    ArtifactList,
    ArtifactShape,
    Cancelled,
    ChatAnswer,
    ChatRequest,
    FileList,
    FilePath,
    FileShape,
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
    workspace_path,
)
from assay.server.api.sse import (
    STREAMED,
    After,
    EventStream,
    Follow,
    LastEventId,
    SseSubscription,
    place_of,
    stream,
)
from assay.server.db.models import Page
from assay.server.errors import not_found
from assay.server.services.chat_service import difference
from assay.server.services.shared_resources import check_usable
from assay.storage.chat_export import to_markdown, to_notebook
from assay.storage.chat_store import ARTIFACTS, FILES, read_session_events

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], responses=documented(404))
_PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Media types that a browser shows without running any code."""
_BYTES: Final = "application/octet-stream"

Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of entries")]
Before = Annotated[
    float | None, Query(description="Only what is older than this moment", allow_inf_nan=False)
]


@router.get("")
async def list_sessions(
    house: Server, caller: ReadAccess, limit: Limit = 50, before: Before = None
) -> SessionList:
    """List sessions, the last used one first."""
    rows = await house.conversations.list(caller.user, Page(limit=limit, before=before))
    return SessionList(sessions=[SessionShape.of(row) for row in rows])


@router.post("", status_code=201)
async def create_session(
    request: Request, house: Server, caller: WriteAccess, new: NewSession
) -> SessionShape:
    """Create a session."""
    model = await check_usable(new.model, caller, house.settings)
    row = await house.conversations.create(caller.user, new.title, model)
    await house.audit(caller, "session.create", row.id, request=request_id(request))
    return SessionShape.of(row)


@router.get("/{session_id}")
async def show_session(house: Server, caller: ReadAccess, session_id: Name) -> SessionShape:
    """Show one session."""
    return SessionShape.of(await house.conversations.find(caller.user, session_id))


@router.patch("/{session_id}")
async def rename_session(
    house: Server, caller: WriteAccess, session_id: Name, new: RenameRequest
) -> SessionShape:
    """Change the title of a session."""
    row = await house.conversations.rename(caller.user, session_id, new.title)
    return SessionShape.of(row)


@router.delete("/{session_id}", status_code=204, responses=documented(404, 409))
async def delete_session(
    request: Request, house: Server, caller: WriteAccess, session_id: Name
) -> None:
    """Delete a session with all its files."""
    await house.conversations.delete(caller.user, session_id)
    await house.audit(caller, "session.delete", session_id, request=request_id(request))


@router.post("/{session_id}/turns", status_code=202, responses=documented(404, 409))
async def begin_turn(
    house: Server, caller: WriteAccess, session_id: Name, said: MessageRequest
) -> TurnBegun:
    """Send a message. The answer arrives in the events of the session."""
    begun = await house.conversations.begin_turn(caller, session_id, said.message)
    return TurnBegun(session_id=session_id, turn=begun.turn)


@router.post("/{session_id}/cancel", status_code=202)
async def cancel_turn(house: Server, caller: WriteAccess, session_id: Name) -> Cancelled:
    """Cancel the running turn; the session continues."""
    ended = await house.conversations.interrupt(caller.user, session_id)
    return Cancelled(cancelled=ended)


@router.post("/{session_id}/undo", responses=documented(404, 409))
async def undo_turn(house: Server, caller: WriteAccess, session_id: Name) -> Undone:
    """Undo the last turn and the effects of its code."""
    undone = await house.conversations.undo(caller.user, session_id)
    return Undone(turn=undone.turn)


@router.get(
    "/{session_id}/events", response_class=EventStream, responses={**documented(404), **STREAMED}
)
async def follow_session(
    house: Server,
    caller: ReadAccess,
    session_id: Name,
    after: After = None,
    follow: Follow = True,  # noqa: FBT002 - a query parameter
    last_event_id: LastEventId = None,
) -> EventStream:
    """Stream the events of a session, from the start or after an event."""
    opening = house.conversations.feed(caller.user, session_id)
    feed = await opening.__aenter__()
    place = place_of(after, last_event_id)
    watched = house.streams.opened(caller)
    following = SseSubscription(
        opening=opening, feed=feed, after=place, follow=follow, watched=watched
    )
    return stream(following)


@router.get("/{session_id}/files")
async def list_files(house: Server, caller: ReadAccess, session_id: Name) -> FileList:
    """List the files that were added to the workspace."""
    home = await house.conversations.folder(caller.user, session_id) / FILES
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
    request: Request, house: Server, caller: WriteAccess, session_id: Name, path: FilePath
) -> LoadedFile:
    """Add a file to the workspace, where the code of the session finds it."""
    place = workspace_path(path)
    content = await request.body()
    loaded = await house.conversations.load(caller.user, session_id, place, content)
    return LoadedFile(path=loaded.path, size_bytes=loaded.size_bytes, about=loaded.about)


@router.get("/{session_id}/files/{path:path}", response_class=FileResponse)
async def get_file(house: Server, caller: ReadAccess, session_id: Name, path: FilePath) -> Response:
    """Download a file that was added to the workspace."""
    home = await house.conversations.folder(caller.user, session_id) / FILES
    return await _attached(home, workspace_path(path))


@router.get("/{session_id}/artifacts")
async def list_artifacts(house: Server, caller: ReadAccess, session_id: Name) -> ArtifactList:
    """List the figures, tables and files that the session produced."""
    folder = await house.conversations.folder(caller.user, session_id)
    made = await to_thread.run_sync(_artifacts_of, folder)
    return ArtifactList(artifacts=[ArtifactShape.of(one, session_id) for one in made])


@router.get("/{session_id}/artifacts/{name}", response_class=FileResponse)
async def get_artifact(
    house: Server, caller: ReadAccess, session_id: Name, name: FilePath
) -> Response:
    """Download an artifact. A browser may show images inline, and only saves other types."""
    folder = await house.conversations.folder(caller.user, session_id)
    response = await _attached(folder / ARTIFACTS, workspace_path(name))
    kind = mimetypes.guess_type(name)[0]
    if kind in _PICTURES:
        response.headers["content-type"] = kind
        response.headers["content-disposition"] = "inline"
    response.headers["content-security-policy"] = "default-src 'none'; sandbox"
    return response


@router.get("/{session_id}/export", response_class=Response)
async def export_session(
    house: Server,
    caller: ReadAccess,
    session_id: Name,
    format: Annotated[Literal["ipynb", "markdown"], Query()] = "ipynb",  # noqa: A002 - a query parameter
) -> Response:
    """Download a session as a notebook or as Markdown."""
    folder = await house.conversations.folder(caller.user, session_id)
    content = await to_thread.run_sync(_exported, folder, format)
    suffix = "ipynb" if format == "ipynb" else "md"
    kind = "application/x-ipynb+json" if format == "ipynb" else "text/markdown"
    headers = {"content-disposition": f'attachment; filename="{session_id}.{suffix}"'}
    return Response(content, media_type=kind, headers=headers)


def _files_in(home: Path) -> list[FileShape]:
    found = [place for place in home.rglob("*") if place.is_file() and not place.is_symlink()]
    return [
        FileShape(path=str(place.relative_to(home)), size_bytes=place.stat().st_size)
        for place in sorted(found)
    ]


def _artifacts_of(folder: Path) -> list[Exhibit]:
    cells = [event for event in read_session_events(folder) if isinstance(event, CellEnded)]
    return [made for cell in cells for made in cell.artifacts]


async def _attached(home: Path, path: PurePosixPath) -> FileResponse:
    """Return a file that a browser saves, regardless of its content."""
    place = home / path
    try:
        status = await to_thread.run_sync(place.lstat)
    except OSError:
        raise not_found("file", str(path)) from None
    if not stat.S_ISREG(status.st_mode):
        raise not_found("file", str(path))
    return FileResponse(place, media_type=_BYTES, filename=place.name)


def _exported(folder: Path, wanted: str) -> bytes:
    history = history_of(read_session_events(folder))
    if wanted == "markdown":
        text = to_markdown(history)
    else:
        home = folder / ARTIFACTS
        text = to_notebook(history, lambda made: (home / made.name).read_bytes())
    return text.encode("utf-8", "replace")


chat_router = APIRouter(tags=["chat"])


@chat_router.post("/chat", responses=documented(404, 409, 500, 502))
async def chat(
    request: Request, house: Server, caller: WriteAccess, asked: ChatRequest
) -> ChatAnswer:
    """Send a message and wait for the answer, in an existing or a new session."""
    async with house.quotas.reserving_turn(caller, asked.message) as hold:
        session_id = asked.session_id
        if session_id is None:
            model = await check_usable(asked.model, caller, house.settings)
            session_id = (await house.conversations.create(caller.user, model=model)).id
            await house.audit(caller, "session.create", session_id, request=request_id(request))
        begun = await house.conversations.begin_turn(caller, session_id, asked.message, hold)
    turn = await begun.finish()
    if turn.status == "failed":
        raise TurnFailedError(turn.error, session_id, turn.number)
    usage = difference(begun.before, begun.conversation.dialogue.history.usage)
    return answer_of(turn, session_id, usage)
