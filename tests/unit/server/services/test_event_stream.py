"""Events by number, and what passes between them."""

from pathlib import Path

import pytest

from assay.contracts.chat import ReplyDelta
from assay.server.services.event_stream import EVENTS, Feed


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    (tmp_path / EVENTS).touch()
    return Feed(tmp_path, 0)


async def heard(feed: Feed) -> list[str]:
    feed.close()
    return [told.data async for told in feed.listen() if told is not None]


async def test_who_comes_in_later_hears_what_has_passed_of_this_step(feed: Feed) -> None:
    feed.tell(ReplyDelta(text="The beginning. "), kept=False)
    feed.tell(ReplyDelta(text="More."), kept=False)

    first, second = await heard(feed)

    assert "The beginning. " in first
    assert "More." in second


async def test_what_was_kept_since_makes_what_passed_before_old(feed: Feed) -> None:
    feed.tell(ReplyDelta(text="old"), kept=False)
    feed.tell(ReplyDelta(text="the whole"), kept=True)
    feed.tell(ReplyDelta(text="new"), kept=False)

    told = await heard(feed)

    assert len(told) == 1
    assert "new" in told[0]
