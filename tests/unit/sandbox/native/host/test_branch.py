"""A cell under way, seen by its supervisor: what the keeper says of it, and what is answered."""

import json
import os
import signal
import socket
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from assay.contracts.execution import Limits, OutputChunk, Reason
from assay.sandbox.native.guest import messages
from assay.sandbox.native.host.branch import BranchPipes, CellEnding, CellRun
from assay.sandbox.native.host.jail import Descriptor, Jail
from assay.sandbox.native.host.messages import Orders
from assay.sandbox.native.host.usage_monitor import Usage
from tests.support.cells import cell_of

LIMITS = Limits(wall_s=10.0, memory_mb=100)
DONE = {"done": True}
KEPT = {"over": True, "kept": True, "ended": 0}
LOST = {"over": True, "kept": False, "ended": int(signal.SIGKILL)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """A watch that always sees the same."""

    megabytes: int
    enforcing: bool = False

    def look(self) -> Usage:
        return Usage(memory_bytes=self.megabytes << 20)

    def forget_peaks(self) -> None:
        """Nothing changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """What stands for a keeper: it hears orders, and says what it is told to say."""

    lineage: BranchPipes
    orders: Orders
    heard: socket.socket

    def say(self, *words: dict[str, Any]) -> None:
        text = "".join(f"{json.dumps(word)}\n" for word in words)
        os.write(self.lineage.theirs[-1], text.encode())

    def hear(self) -> str:
        return messages.receive(self.heard)[0]["do"]


@pytest.fixture
def keeper() -> Generator[Keeper]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    lineage = BranchPipes(1)
    orders = Orders(Descriptor(ours.fileno()))
    yield Keeper(lineage=lineage, orders=orders, heard=theirs)
    orders.close()
    lineage.close()
    ours.close()
    theirs.close()


@pytest.fixture
def cell() -> Generator[Jail]:
    held = cell_of(os.open("/dev/null", os.O_RDONLY))
    yield held
    held.close()


async def follow(keeper: Keeper, cell: Jail, watch: HeldMemory) -> CellEnding:
    def ignore(chunk: OutputChunk) -> None:
        del chunk

    run = CellRun(keeper.lineage, keeper.orders, cell, LIMITS, watch, ignore)
    with anyio.fail_after(60):
        return await run.follow(1, "x = 1")


@pytest.mark.parametrize("enforcing", [True, False])
async def test_a_keeper_asks_only_where_the_kernel_does_not_keep_memory(
    keeper: Keeper, cell: Jail, *, enforcing: bool
) -> None:
    keeper.say(KEPT)

    ended = await follow(keeper, cell, HeldMemory(megabytes=1, enforcing=enforcing))

    assert ended.kept
    assert messages.receive(keeper.heard)[0]["ask"] is not enforcing


async def test_a_cell_within_its_limits_may_be_kept(keeper: Keeper, cell: Jail) -> None:
    keeper.say(DONE, KEPT)

    ended = await follow(keeper, cell, HeldMemory(megabytes=99))

    assert ended.kept
    assert ended.raw.killed_for is None
    assert [keeper.hear(), keeper.hear()] == ["run", "keep"]


async def test_a_cell_that_holds_too_much_when_it_is_done_is_ended(
    keeper: Keeper, cell: Jail
) -> None:
    keeper.say(DONE, LOST)

    ended = await follow(keeper, cell, HeldMemory(megabytes=101))

    assert not ended.kept
    assert ended.raw.killed_for is Reason.OUT_OF_MEMORY
    assert [keeper.hear(), keeper.hear()] == ["run", "end"]
