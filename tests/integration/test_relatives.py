"""A keeper finds what cells have left, also where the kernel does not list its processes."""

import os
import subprocess
import sys
import threading
from collections.abc import Generator

import pytest

from assay.sandbox.native.guest.process_tree import ListedRelatives, NumberedRelatives, children_of
from tests.support.children import a_child, have_a_child

WAIT = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def child() -> Generator[int]:
    with subprocess.Popen(WAIT, stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process.pid
        process.kill()


def strangers() -> tuple[NumberedRelatives, set[int]]:
    """Whoever runs on this machine besides: here the numbers are not ours alone."""
    relatives = NumberedRelatives()
    return relatives, set(relatives.find((), (), set(), alone=True))


def test_every_number_that_is_in_use_is_found_once() -> None:
    relatives, others = strangers()
    with subprocess.Popen(WAIT, stdin=subprocess.PIPE) as process:
        found = set(relatives.find((), (), set(), alone=True))
        again = set(relatives.find((), (), set(), alone=True))
        process.kill()

    assert process.pid in found - others
    assert process.pid not in again, "who was found is killed, and only has to be buried"
    assert os.getpid() not in found | others


def test_a_thread_of_the_keeper_is_not_a_stranger() -> None:
    """One that lingers would be killed for what cells have left, and the keeper with it."""
    go_on = threading.Event()
    lingering = threading.Thread(target=go_on.wait)
    lingering.start()
    try:
        _, others = strangers()
    finally:
        go_on.set()
        lingering.join()

    assert lingering.native_id not in others


def test_who_is_known_is_not_found(child: int) -> None:
    assert child not in NumberedRelatives().find((), (), {child}, alone=True)


def test_beside_others_only_the_session_of_the_roots_is_looked_at(child: int) -> None:
    with subprocess.Popen(WAIT, stdin=subprocess.PIPE, start_new_session=True) as other:
        found = NumberedRelatives().find((child,), (), set(), alone=False)
        other.kill()

    assert child in found
    assert other.pid not in found


def test_who_is_in_the_session_of_somebody_being_born_is_not_found(child: int) -> None:
    newborn = {os.getsid(child)}

    for relatives in (ListedRelatives(), NumberedRelatives()):
        assert child not in relatives.find((), (), set(), alone=True, newborn=newborn)
        assert child in relatives.find((child,), (), set(), alone=True, newborn=newborn)


def test_listed_relatives_are_the_roots_and_what_is_below(child: int) -> None:
    relatives = ListedRelatives()

    assert child in relatives.find((child,), (), set(), alone=True)
    assert child in relatives.find((), (), set(), alone=True), "a stray is our child"
    assert relatives.is_child(child, os.getpid())
    assert not relatives.is_child(child, child)


def test_a_new_cell_is_not_found_below_a_former_head_that_is_not_dead_yet() -> None:
    """The former head is above its successor until the kernel has ended it."""
    with a_child(lambda: have_a_child(have_a_child)) as former:
        (head,) = children_of(former)
        (cell,) = children_of(head)
        found = ListedRelatives().find((), (), {head}, alone=True)
        below = ListedRelatives().find((), (head,), {head}, alone=True)

    assert former in found
    assert cell not in found
    assert cell in below
