"""Orders to a keeper that does not take them at once, and the descriptors that go along."""

import os
import socket
from collections.abc import Generator
from pathlib import Path
from threading import Thread

import pytest

from assay.sandbox.native.guest import messages
from assay.sandbox.native.host.jail import Descriptor, close_all
from assay.sandbox.native.host.messages import Orders

LONG = {"do": "run", "source": "x" * (4 << 20)}
SHORT = {"do": "branch"}


@pytest.fixture
def ends() -> Generator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    with ours, theirs:
        yield ours, theirs


def open_descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_a_descriptor_that_is_closed_while_its_order_waits_still_goes_along(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    orders = Orders(Descriptor(ours.fileno()))
    reading, writing = os.pipe()
    pipe = os.fstat(writing).st_ino
    orders.put(LONG)
    orders.put(SHORT, [writing])
    assert orders.pending

    os.close(writing)
    heard: list[tuple[messages.Message, list[int]]] = []
    taking = Thread(target=lambda: heard.extend(messages.receive(theirs) for _ in range(2)))
    taking.start()
    while orders.pending:
        orders.send_more()
    taking.join()

    [received] = heard[1][1]
    assert heard[1][0] == SHORT
    assert os.fstat(received).st_ino == pipe
    close_all([reading, received])
    orders.close()


def test_what_was_not_sent_leaves_no_descriptor_open(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    before = open_descriptors()
    orders = Orders(Descriptor(ours.fileno()))
    orders.put(LONG)
    orders.put(SHORT, [ours.fileno(), theirs.fileno()])

    orders.close()

    assert open_descriptors() == before
