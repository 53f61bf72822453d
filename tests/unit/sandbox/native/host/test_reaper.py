"""What a cell held is given back when its last process is gone, and not before."""

import os
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import anyio.lowlevel

from assay.sandbox.native.host.jail import Jail, Reaper
from assay.sandbox.native.kernel.cgroups import ControlGroup
from tests.support.cells import cell_of
from tests.support.children import a_child, a_zombie


class CountedGroup(ControlGroup):
    """Says whether it was removed."""

    removed = False

    def remove(self) -> None:
        self.removed = True


def counted_cell(pid: int, slot: str) -> tuple[Jail, CountedGroup]:
    group = CountedGroup()
    return cell_of(os.pidfd_open(pid), group, slot=slot), group


@contextmanager
def the_dead() -> Generator[int]:
    pid = a_zombie()
    try:
        yield pid
    finally:
        os.waitpid(pid, 0)


async def test_the_dead_are_buried_and_the_living_are_not() -> None:
    with a_child() as living, the_dead() as dead:
        async with Reaper() as dying:
            (_, kept), (_, given_back) = cells = [
                counted_cell(living, "1"),
                counted_cell(dead, "2"),
            ]
            for cell, _ in cells:
                dying.add(cell)

            with anyio.fail_after(60):
                slots = await dying.reap_some()

            assert slots == ["2"]
            assert (kept.removed, given_back.removed) == (False, True)


async def test_whoever_gives_up_leaves_nothing_open() -> None:
    with a_child() as living:
        cell, group = counted_cell(living, "1")
        async with Reaper() as dying:
            dying.add(cell)

        assert group.removed
        assert cell.go.number == -1


async def test_a_cell_that_comes_after_the_last_round_is_given_back_at_once() -> None:
    with a_child() as living:
        cell, group = counted_cell(living, "1")
        async with Reaper() as dying:
            pass

        dying.add(cell)

        assert group.removed
        assert cell.go.number == -1


async def test_waiting_for_the_dead_can_be_ended() -> None:
    async with Reaper() as dying:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(dying.reap_some)
                await anyio.lowlevel.checkpoint()
                dying.wake()
