"""Slots are released each for itself, whatever has been made of them and of the others."""

import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay.sandbox.native.guest import jail_mounts, mounts


class Slots(mounts.OnlyWorkspace):
    """Cannot release one slot, and says which it has released when it is asked to bind one."""

    def __init__(self) -> None:
        self._released: list[str] = []

    def open(self, box: str, size_bytes: int, start: str = "") -> list[int]:
        raise NotImplementedError

    def close(self, box: str) -> None:
        raise NotImplementedError

    def bind(self, box: str, slot: str) -> None:
        del box, slot
        raise OSError(" ".join(self._released))

    def release(self, slot: str) -> None:
        if slot == "2":
            raise FileNotFoundError(slot)
        self._released.append(slot)


@contextmanager
def a_steward(boxes: mounts.OnlyWorkspace) -> Generator[socket.socket]:
    """A steward in a process of its own, which ends when its channel is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        try:
            ours.close()
            mounts.main(theirs.detach(), boxes)
        finally:
            os._exit(1)
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        os.waitpid(child, 0)


def test_a_slot_that_cannot_be_released_does_not_keep_the_others() -> None:
    with a_steward(Slots()) as channel:
        channel.send(json.dumps({"do": "release", "slots": ["1", "2", "3"]}).encode())
        channel.send(json.dumps({"do": "bind", "box": "1", "slot": "4"}).encode())

        assert json.loads(channel.recv(4096)) == {"error": "1 3"}


@pytest.mark.parametrize("made", [(), ("workspace",), ("workspace", "tmp")])
def test_a_slot_is_released_with_as_many_folders_as_were_made(
    made: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jail_mounts, "SLOTS", str(tmp_path))
    for folder in made:
        (tmp_path / "1" / folder).mkdir(parents=True)

    mounts.MountedWorkspaces().release("1")

    assert not (tmp_path / "1").exists()
