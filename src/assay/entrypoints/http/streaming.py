"""Events as a stream that a browser or a script can follow: `text/event-stream`, with resume."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Annotated, Any, Final

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from fastapi import Header, Query
from fastapi.responses import StreamingResponse

from assay.hosting.feeds import Feed, Told

_EVERY_S: Final = 15.0
"""Between signs of life, so that nothing on the way takes the line for dead."""
_AHEAD: Final = 16

After = Annotated[
    int | None, Query(ge=0, le=2**53, description="Go on after the event of this number")
]
Follow = Annotated[bool, Query(description="Whether to wait for what happens next")]
LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", description="As `after`, sent by browsers")
]
STREAMED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Server-sent events: `id` is the number of a kept event, `event` its kind, "
        "`data` its fields as JSON.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": 'id: 1\nevent: turn_began\ndata: {"turn": 1, "message": "hello"}\n\n',
            }
        },
    }
}


class EventStream(StreamingResponse):
    """Only names the media type."""

    media_type = "text/event-stream"


def place_of(after: int | None, last: str | None) -> int:
    """Return after which event to go on; a header that is no number counts as none."""
    if after is not None:
        return after
    return int(last) if last and last.isdecimal() and len(last) < 16 else 0  # noqa: PLR2004 - below 2**53


def stream(
    opening: AbstractAsyncContextManager[Feed], feed: Feed, after: int, *, follow: bool, end: bool
) -> EventStream:
    """Answer with a feed that was opened before, so that what is not there is said in time.

    With `end`, the stream says that it has come to its end.
    """
    return EventStream(_lines(opening, feed, after, follow=follow, end=end))


async def _lines(
    opening: AbstractAsyncContextManager[Feed], feed: Feed, after: int, *, follow: bool, end: bool
) -> AsyncGenerator[str]:
    send, receive = anyio.create_memory_object_stream[Told | None](_AHEAD)
    try:
        yield ": assay\n\n"
        async with anyio.create_task_group() as tasks, receive:
            tasks.start_soon(_pump, feed, after, follow, send)
            while True:
                told: Told | None = None
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
        if end:
            yield "event: end\ndata: {}\n\n"
    finally:
        with anyio.CancelScope(shield=True):
            await opening.__aexit__(None, None, None)


async def _pump(
    feed: Feed,
    after: int,
    follow: bool,  # noqa: FBT001 - start_soon hands over by position
    send: MemoryObjectSendStream[Told | None],
) -> None:
    async with send, aclosing(feed.listen(after, follow=follow)) as heard:
        async for told in heard:
            await send.send(told)


def _line(told: Told) -> str:
    number = f"id: {told.number}\n" if told.number else ""
    return f"{number}event: {told.kind}\ndata: {told.data}\n\n"
