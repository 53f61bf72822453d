"""What a cell is made of is given back, however the making of it or its engine ends."""

import errno
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.lowlevel
import pytest

from assay.contracts.errors import SandboxUnavailableError
from assay.sandbox.native.guest.jail_spec import JailSpec, RootPlan
from assay.sandbox.native.host.engine import Engine, JailPool
from assay.sandbox.native.host.messages import Channel
from assay.sandbox.native.kernel.cgroups import ControlGroup, ControlGroups
from tests.support.channels import Peer, a_channel, open_descriptors
from tests.support.children import a_child

SPEC = JailSpec(
    tier="namespaces",
    root=RootPlan(),
    argv=(),
    env=(),
    seccomp_hex="",
    readable=(),
    scratch="",
)


class Groups(ControlGroups):
    """Counts the groups that are there, and opens no entry of them if it is told so."""

    def __init__(self, *, entries: bool = True) -> None:
        self.entries = entries
        self.there = 0

    def open_group(self, name: str) -> ControlGroup:
        del name
        self.there += 1
        return _Group(self)


class _Group(ControlGroup):
    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def open_entries(self) -> list[int]:
        if not self._groups.entries:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return []

    def remove(self) -> None:
        self._groups.there -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """An engine whose zygote is in the hands of a test."""

    engine: Engine
    orders: Channel
    zygote: Peer


@asynccontextmanager
async def an_engine(groups: Groups) -> AsyncGenerator[Parts]:
    starting = anyio.open_process(["true"], stdin=None, stdout=None, stderr=None)
    async with await starting as launcher:
        await launcher.wait()
        with (
            a_channel() as (orders, zygote),
            a_channel() as (mounts, _),
            a_channel() as (layers, _),
        ):
            engine = Engine(
                SPEC,
                groups,
                launcher=launcher,
                zygotes=(orders,),
                mounts=mounts,
                layers=layers,
                life=-1,
                pool_size=0,
            )
            yield Parts(engine=engine, orders=orders, zygote=zygote)


async def test_a_cell_that_was_cancelled_in_the_queue_leaves_nothing_behind() -> None:
    groups = Groups()
    async with an_engine(groups) as parts, anyio.create_task_group() as tasks:
        tasks.start_soon(parts.orders.ask, {"do": "something else"})
        await parts.zygote.hear()
        before = open_descriptors()

        with anyio.move_on_after(0) as making:
            await parts.engine.make_jail(0, ahead=False)

        assert making.cancelled_caught
        assert open_descriptors() == before
        assert groups.there == 0
        parts.zygote.say({})


async def test_a_cell_that_the_zygote_refuses_leaves_nothing_behind() -> None:
    groups = Groups()
    async with an_engine(groups) as parts:
        before = open_descriptors()
        parts.zygote.say({"error": "no room"})

        with pytest.raises(SandboxUnavailableError, match="no room"):
            await parts.engine.make_jail(0, ahead=False)

        assert open_descriptors() == before
        assert groups.there == 0


async def test_a_cell_whose_group_cannot_be_entered_leaves_nothing_behind() -> None:
    groups = Groups(entries=False)
    async with an_engine(groups) as parts:
        before = open_descriptors()

        with pytest.raises(SandboxUnavailableError, match="out of descriptors"):
            await parts.engine.make_jail(0, ahead=False)

        assert open_descriptors() == before
        assert groups.there == 0


async def test_nobody_waits_for_cells_of_an_engine_that_is_gone() -> None:
    async with an_engine(Groups()) as parts:
        pool = JailPool(parts.engine, 0, 0)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pool.keep_filled)
                await anyio.lowlevel.checkpoint()
                parts.engine.alive = False
                pool.wake()


async def test_a_cell_that_waits_when_its_engine_goes_is_given_back() -> None:
    groups = Groups()
    async with an_engine(groups) as parts:
        pool = JailPool(parts.engine, 0, 1)
        before = open_descriptors()
        with a_child() as child, anyio.fail_after(60):
            pidfd = os.pidfd_open(child)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(parts.engine.reap)
                tasks.start_soon(pool.keep_filled)
                await parts.zygote.hear()
                parts.zygote.say({}, [pidfd])
                os.close(pidfd)
                parts.engine.alive = False
                pool.wake()

        assert open_descriptors() - set(map(str, parts.zygote.received)) == before
        assert groups.there == 0
