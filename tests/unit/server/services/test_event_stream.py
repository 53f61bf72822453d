"""Events by number, and what passes between them."""

from pathlib import Path

import pytest

from assay.contracts.chat import ReplyDelta
from assay.server.services.event_stream import EVENTS, EventStream


@pytest.fixture
def stream(tmp_path: Path) -> EventStream:
    (tmp_path / EVENTS).touch()
    return EventStream(tmp_path, 0)


async def heard(stream: EventStream) -> list[str]:
    stream.close()
    return [told.data async for told in stream.listen() if told is not None]


async def test_who_comes_in_later_hears_what_has_passed_of_this_step(stream: EventStream) -> None:
    stream.send(ReplyDelta(text="The beginning. "), kept=False)
    stream.send(ReplyDelta(text="More."), kept=False)

    first, second = await heard(stream)

    assert "The beginning. " in first
    assert "More." in second


async def test_what_was_kept_since_makes_what_passed_before_old(stream: EventStream) -> None:
    stream.send(ReplyDelta(text="old"), kept=False)
    stream.send(ReplyDelta(text="the whole"), kept=True)
    stream.send(ReplyDelta(text="new"), kept=False)

    told = await heard(stream)

    assert len(told) == 1
    assert "new" in told[0]
