"""Messages between keeper and heads: whole ones arrive, and what is none ends the talk."""

import socket
from collections.abc import Generator

import pytest

from assay.sandbox.native.guest import messages

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Generator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_message_arrives_with_its_descriptors(pair: Pair) -> None:
    ours, theirs = pair
    messages.send(ours, {"do": "run", "source": "\udc80 é"}, [ours.fileno()])

    message, descriptors = messages.receive(theirs)

    assert message == {"do": "run", "source": "\udc80 é"}
    assert len(descriptors) == 1
    socket.socket(fileno=descriptors[0]).close()


def test_a_listener_waits_for_the_rest_of_a_message(pair: Pair) -> None:
    ours, theirs = pair
    listener = messages.Listener(theirs, largest=100)
    data = messages.encode({"ready": True}) + messages.encode({"ended": 9})
    ours.sendall(data[:7])

    assert listener.hear() == []

    ours.sendall(data[7:])

    assert listener.hear() == [{"ready": True}, {"ended": 9}]
    assert listener.hear() == []


@pytest.mark.parametrize("junk", [b"\xff\xff\xff\xff", b"\0\0\0\2{{", b"\0\0\0\1" + b"7"])
def test_what_is_no_message_ends_the_talk(pair: Pair, junk: bytes) -> None:
    ours, theirs = pair
    ours.sendall(junk)

    with pytest.raises(messages.ConnectionLostError):
        messages.Listener(theirs, largest=100).hear()


def test_an_end_is_noticed(pair: Pair) -> None:
    ours, theirs = pair
    ours.close()

    with pytest.raises(messages.ConnectionLostError):
        messages.receive(theirs)
