"""Server-sent events (`text/event-stream`), with resume after an event."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Final

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from fastapi import Header, Query
from fastapi.responses import StreamingResponse

from assay.server.services.event_stream import Feed, FeedEvent

_EVERY_S: Final = 15.0
"""Interval of keep-alive comments, so that proxies do not close the connection."""
_AHEAD: Final = 16

After = Annotated[
    int | None, Query(ge=0, le=2**53, description="Go on after the event of this number")
]
Follow = Annotated[bool, Query(description="Whether to wait for what happens next")]
LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", description="As `after`, sent by browsers")
]
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


class EventStream(StreamingResponse):
    """Response class that only sets the media type."""

    media_type = "text/event-stream"


def place_of(after: int | None, last: str | None) -> int:
    """Return the event number to resume after; ignore a header that is no number."""
    if after is not None:
        return after
    return int(last) if last and last.isdecimal() and len(last) < 16 else 0  # noqa: PLR2004 - below 2**53


async def never() -> bool:
    """Report that the source has not ended, for sources without an end."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SseSubscription:
    """An open event stream; opening it first lets an error become an HTTP status."""

    opening: AbstractAsyncContextManager[Feed]
    feed: Feed
    after: int
    follow: bool
    watched: AbstractContextManager[anyio.CancelScope]
    """Cancelled when the caller loses access."""
    has_ended: Callable[[], Awaitable[bool]] = never
    """Called at the end of the stream, which sends `end` if it returns true."""


def stream(following: SseSubscription) -> EventStream:
    """Stream events to the client."""
    return EventStream(_lines(following))


async def _lines(following: SseSubscription) -> AsyncGenerator[str]:
    send, receive = anyio.create_memory_object_stream[FeedEvent | None](_AHEAD)
    try:
        yield ": assay\n\n"
        with following.watched as watched:
            async with anyio.create_task_group() as tasks, receive:
                tasks.start_soon(_pump, following, send)
                while True:
                    told: FeedEvent | None = None
                    with anyio.move_on_after(_EVERY_S) as waiting:
                        try:
                            told = await receive.receive()
                        except anyio.EndOfStream:
                            break
                    if waiting.cancelled_caught:
                        yield ": still here\n\n"
                    elif told is not None:
                        yield _line(told)
                tasks.cancel_scope.cancel()
        if not watched.cancel_called and await following.has_ended():
            yield "event: end\ndata: {}\n\n"
    finally:
        with anyio.CancelScope(shield=True):
            await following.opening.__aexit__(None, None, None)


async def _pump(following: SseSubscription, send: MemoryObjectSendStream[FeedEvent | None]) -> None:
    events = following.feed.listen(following.after, follow=following.follow)
    async with send, aclosing(events) as heard:
        async for told in heard:
            await send.send(told)


def _line(told: FeedEvent) -> str:
    number = f"id: {told.number}\n" if told.number else ""
    return f"{number}event: {told.kind}\ndata: {told.data}\n\n"
