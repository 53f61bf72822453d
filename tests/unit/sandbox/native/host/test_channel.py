import os
import socket
from itertools import count

import anyio
import pytest

from assay.sandbox.native.host.messages import ChannelClosedError, RefusedError
from tests.support.channels import a_channel, open_descriptors


async def test_a_question_gets_its_answer() -> None:
    with a_channel() as (channel, peer):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.echo, 1)
            answer, received = await channel.ask({"do": "open"})

    assert answer == {"heard": {"do": "open"}}
    assert received == []


async def test_descriptors_go_both_ways() -> None:
    reading, writing = os.pipe()
    with a_channel() as (channel, peer):

        async def serve() -> None:
            await peer.hear()
            peer.say({}, peer.received)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            _, (returned,) = await channel.ask({}, (writing,))
        os.write(returned, b"through")

        assert os.read(reading, 10) == b"through"
        assert not os.get_inheritable(returned)
    for descriptor in (reading, writing, returned):
        os.close(descriptor)


async def test_questions_asked_at_once_are_answered_each_with_its_own() -> None:
    answers: dict[int, object] = {}
    with a_channel() as (channel, peer):

        async def ask(number: int) -> None:
            answers[number], _ = await channel.ask({"number": number})

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.echo, 20)
            for number in range(20):
                tasks.start_soon(ask, number)

    assert answers == {number: {"heard": {"number": number}} for number in range(20)}


async def test_a_question_that_was_cancelled_leaves_no_answer_for_the_next() -> None:
    with a_channel() as (channel, peer):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.ask, {"number": 1})
            first = await peer.hear()
            tasks.cancel_scope.cancel()
            peer.say({"heard": first})

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.echo, 1)
            answer, _ = await channel.ask({"number": 2})

    assert answer == {"heard": {"number": 2}}


async def test_a_question_that_was_cancelled_in_the_queue_is_never_asked() -> None:
    with a_channel() as (channel, peer):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.ask, {"number": 1})
            await peer.hear()
            with anyio.move_on_after(0):
                await channel.ask({"number": 2})
            peer.say({})

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.echo, 1)
            answer, _ = await channel.ask({"number": 3})

    assert answer == {"heard": {"number": 3}}


async def test_a_refusal_is_told_and_the_channel_goes_on() -> None:
    with a_channel() as (channel, peer):
        peer.say({"error": "no room"})
        with pytest.raises(RefusedError, match="no room"):
            await channel.ask({})
        await peer.hear()

        peer.say({"fine": True})
        answer, _ = await channel.ask({})

    assert answer == {"fine": True}


async def test_descriptors_that_come_with_a_refusal_are_closed() -> None:
    with a_channel() as (channel, peer):
        before = open_descriptors()
        peer.say({"error": "no"}, (0, 0))

        with pytest.raises(RefusedError):
            await channel.ask({})

        assert open_descriptors() == before


@pytest.mark.parametrize(
    "garbage",
    [b"", b"{", b"\xff\xfe", b"[]", b"null", b'"text"', b"7", b"[" * 4000, b'{"a":' * 800],
    ids=lambda garbage: repr(garbage[:8]),
)
async def test_an_answer_that_is_none_closes_the_channel(garbage: bytes) -> None:
    with a_channel() as (channel, peer):
        before = open_descriptors()
        socket.send_fds(peer.end, [garbage], [0, 0])

        with pytest.raises(ChannelClosedError):
            await channel.ask({})

        assert open_descriptors() == before


async def test_a_channel_that_was_closed_by_garbage_asks_nothing_more() -> None:
    with a_channel() as (channel, peer):
        peer.end.send(b"garbage")
        with pytest.raises(ChannelClosedError):
            await channel.ask({"number": 1})
        await peer.hear()

        with pytest.raises(ChannelClosedError):
            await channel.ask({"number": 2})

        with pytest.raises(BlockingIOError):
            peer.end.recv(10)


async def test_a_side_that_is_gone_before_the_question_is_noticed() -> None:
    with a_channel() as (channel, peer):
        peer.end.close()

        with pytest.raises(ChannelClosedError):
            await channel.ask({})


async def test_one_can_see_without_asking_whether_the_other_side_is_gone() -> None:
    with a_channel() as (channel, peer):
        peer.say({"something": "unread"})
        assert not channel.hung_up()

        peer.end.close()

        assert channel.hung_up()


async def test_a_side_that_goes_without_an_answer_is_noticed() -> None:
    with a_channel() as (channel, peer):

        async def leave() -> None:
            await peer.hear()
            peer.end.close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave)
            with pytest.raises(ChannelClosedError):
                await channel.ask({})


async def test_a_side_that_never_answers_is_given_up() -> None:
    with a_channel() as (channel, _):
        with pytest.raises(ChannelClosedError):
            await channel.hear(within_s=0)

        with pytest.raises(ChannelClosedError, match="gone"):
            await channel.ask({})


async def test_whoever_waits_for_an_answer_hears_when_the_channel_is_closed() -> None:
    with a_channel() as (channel, peer):

        async def close() -> None:
            await peer.hear()
            channel.close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(close)
            with anyio.move_on_after(5) as waiting, pytest.raises(ChannelClosedError):
                await channel.ask({})

        assert not waiting.cancel_called


def fill(end: socket.socket) -> int:
    """Send until nothing more fits, and say how much that was."""
    for sent in count():
        try:
            end.send(b"{}")
        except BlockingIOError:
            return sent
    raise AssertionError("everything fits")


async def test_a_question_waits_while_the_other_side_is_too_busy_to_take_it() -> None:
    with a_channel() as (channel, peer):
        filled = fill(channel._end)  # noqa: SLF001 - nobody else can fill it

        async def drain() -> None:
            for _ in range(filled):
                await peer.hear()
            await peer.echo(1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain)
            answer, _ = await channel.ask({"number": 1})

    assert answer == {"heard": {"number": 1}}


async def test_nothing_is_heard_on_a_closed_channel() -> None:
    with a_channel() as (channel, _):
        channel.close()

        with pytest.raises(ChannelClosedError):
            await channel.hear()
