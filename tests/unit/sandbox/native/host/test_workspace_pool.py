"""A box that is ready is handed out once, only if it is right, and never by a dead engine."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from assay.sandbox.native.host.engine import Workspace, WorkspacePool

SMALL, LARGE = 1 << 20, 1 << 21


@dataclass
class Boxes:
    """Numbered boxes without anything in them."""

    alive: bool = True
    opened: list[Workspace] = field(default_factory=list[Workspace])
    closed: list[str] = field(default_factory=list[str])

    def check_alive(self) -> bool:
        return self.alive

    async def open_workspace(self, size_bytes: int) -> Workspace:
        workspace = os.open("/", os.O_PATH | os.O_DIRECTORY)
        box = Workspace(name=str(len(self.opened)), size_bytes=size_bytes, workspace=workspace)
        self.opened.append(box)
        return box

    async def close_workspace(self, name: str) -> None:
        self.closed.append(name)


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_box_of_the_expected_size_is_there_already() -> None:
    boxes = Boxes()
    shelf = WorkspacePool(boxes, SMALL)
    await shelf.fill()

    box = await shelf.take(SMALL)

    assert [box] == boxes.opened


async def test_a_box_is_handed_out_only_once() -> None:
    boxes = Boxes()
    shelf = WorkspacePool(boxes, SMALL)
    await shelf.fill()

    first, second = await shelf.take(SMALL), await shelf.take(SMALL)

    assert first.name != second.name


async def test_another_size_gets_a_box_of_its_own() -> None:
    shelf = WorkspacePool(Boxes(), SMALL)
    await shelf.fill()

    for _ in range(2):
        assert (await shelf.take(LARGE)).size_bytes == LARGE


async def test_a_box_that_no_longer_fits_is_given_back() -> None:
    boxes = Boxes()
    shelf = WorkspacePool(boxes, SMALL)
    await shelf.fill()
    spare = boxes.opened[0]
    await shelf.take(LARGE)
    before = count_descriptors()

    await shelf.fill()

    assert boxes.closed == [spare.name]
    assert count_descriptors() == before, "one closed, one opened"


async def test_a_box_of_an_engine_that_died_is_not_handed_out() -> None:
    boxes = Boxes()
    shelf = WorkspacePool(boxes, SMALL)
    await shelf.fill()
    boxes.alive = False

    box = await shelf.take(SMALL)

    assert box is boxes.opened[1]


async def test_a_taken_box_is_replaced_and_the_last_one_is_closed_in_the_end() -> None:
    boxes = Boxes()
    shelf = WorkspacePool(boxes, SMALL)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shelf.keep_filled)
        await shelf.take(SMALL)
        with anyio.fail_after(60):
            while len(boxes.opened) < 2:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(boxes.opened[1].workspace)


async def test_nobody_waits_for_boxes_of_an_engine_that_is_gone() -> None:
    boxes = Boxes()
    shelf = WorkspacePool(boxes, SMALL)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shelf.keep_filled)
            await anyio.lowlevel.checkpoint()
            boxes.alive = False
            shelf.wake()

    assert len(boxes.opened) <= 1
