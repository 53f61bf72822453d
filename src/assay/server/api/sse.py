"""Server-sent events (`text/event-stream`), with resume after an event."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Annotated, Any, Final

import anyio
from fastapi import Depends, Header, Query
from fastapi.responses import StreamingResponse

from assay.server.app_state import ServerState
from assay.server.db.models import Caller
from assay.server.services.event_stream import EventStream

Follow = Annotated[bool, Query(description="Whether to wait for what happens next")]
EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
    "required": ["data"],
}
STREAMED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Server-sent events: `id` is the number of a kept event, `event` its kind, "
        "`data` its fields as JSON.",
        "content": {
            "text/event-stream": {
                "schema": EVENT,
                "example": 'id: 1\nevent: turn_started\ndata: {"turn": 1, "message": "hello"}\n\n',
            }
        },
    }
}


class SseResponse(StreamingResponse):
    """Response class that only sets the media type."""

    media_type = "text/event-stream"


def _resume_after(
    after: Annotated[
        int | None, Query(ge=0, le=2**53, description="Go on after the event of this number")
    ] = None,
    last: Annotated[
        str | None, Header(alias="Last-Event-ID", description="As `after`, sent by browsers")
    ] = None,
) -> int:
    if after is not None:
        return after
    # A header that is no number below 2**53 is ignored.
    return int(last) if last and last.isdecimal() and len(last) < 16 else 0  # noqa: PLR2004 - see above


After = Annotated[int, Depends(_resume_after)]
"""Number of the event to resume after."""


async def stream_events(
    server: ServerState,
    caller: Caller,
    opening: AbstractAsyncContextManager[EventStream],
    *,
    after: int,
    follow: bool,
    has_ended: Callable[[], Awaitable[bool]] | None = None,
) -> SseResponse:
    """Stream events to the client until the end of the source, or until it loses access.

    Opening the source before the response lets an error become an HTTP status. `has_ended` tells
    whether the stream sends `end` at its end.
    """
    source = await opening.__aenter__()
    # The source may have ended before it was opened.
    follow = follow and not (has_ended and await has_ended())

    async def lines() -> AsyncGenerator[str]:
        try:
            yield ": assay\n\n"
            with server.subscriptions.opened(caller) as access:
                async with aclosing(source.listen(after, follow=follow)) as events:
                    async for event in events:
                        if event is None:
                            # So that proxies do not close the connection.
                            yield ": still here\n\n"
                            continue
                        number = f"id: {event.number}\n" if event.number else ""
                        yield f"{number}event: {event.kind}\ndata: {event.data}\n\n"
            if has_ended and not access.cancel_called and await has_ended():
                yield "event: end\ndata: {}\n\n"
        finally:
            with anyio.CancelScope(shield=True):
                await opening.__aexit__(None, None, None)

    return SseResponse(lines())
