"""The supervisor's view of a running engine: creates jails and workspaces."""

import errno
import itertools
import os
import signal
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final

import anyio
import anyio.abc

from assay.contracts.errors import SandboxUnavailableError
from assay.sandbox.native.guest.jail_plan import Tier
from assay.sandbox.native.guest.pid1 import NAMESPACES
from assay.sandbox.native.host.channel import Answer, Channel, ChannelClosedError, RefusedError
from assay.sandbox.native.host.jail import PLAIN, Jail, JailOptions, Plumbing, close_all, lay_pipes
from assay.sandbox.native.host.reaper import Reaper
from assay.sandbox.native.host.workspace_pool import Workspace
from assay.sandbox.native.kernel.cgroups import ControlGroup, ControlGroups
from assay.sandbox.native.kernel.open_files import TOO_FEW_HINT

_START_WITHIN_S: Final = 120.0
_STOP_WITHIN_S: Final = 10.0
_NAMESPACES: Final = 1 + len(NAMESPACES)
"""The pid namespace, and the namespaces that a worker joins itself."""


class Engine:
    """One launcher, its zygotes and the mounts process. If one of them dies, the engine is dead."""

    def __init__(
        self,
        *,
        warden: anyio.abc.Process,
        orders: Sequence[Channel],
        mounts: Channel,
        life: int,
        groups: ControlGroups,
        tier: Tier,
    ) -> None:
        self._warden = warden
        self._orders = orders
        self._mounts = mounts
        self._life = life
        self._groups = groups
        self._tier = tier
        self.warden_pid = warden.pid
        self._numbers = itertools.count(1)
        self._dying = Reaper()
        self.alive = True

    async def await_stage(self, stage: int) -> None:
        """Wait until the zygote of a stage has imported its modules.

        Raises:
            SandboxUnavailableError: If the zygote is gone or reports an error.
        """
        await self._translate(self._orders[stage].hear(within_s=_START_WITHIN_S))

    async def make_cell(self, stage: int, *, ahead: bool, fit: JailOptions = PLAIN) -> Jail:
        """Have the zygote of a stage clone a process into new namespaces.

        A jail that is made `ahead` of need does all its preparation now.

        Raises:
            SandboxUnavailableError: If the zygote is gone or reports an error. Nothing has started.
        """
        slot = str(next(self._numbers))
        with ExitStack() as undoing:
            group, pipes, entries = self._lay_out(slot, undoing)
            pid = worker = None
            try:
                if stage == 0 or self._tier != "namespaces":
                    order = {"do": "lead", "slot": slot, "ahead": ahead, **fit.order()}
                    theirs = (*pipes.theirs, *entries)
                    answer, made = await self._ask(self._orders[stage], order, theirs)
                    first, *listeners = made
                    pid = int(answer["pid"]) if self._tier == "contained" else None
                else:
                    made = await self._make_joined(
                        stage, slot, pipes, entries, ahead=ahead, fit=fit
                    )
                    first, worker, *listeners = made
            finally:
                close_all(entries)
            undoing.pop_all()
        # If the worker is not a child of PID 1, the end of stderr is a hint; see
        # `exit_detection.py`.
        outlets = pipes.theirs[2:4] if worker is None else pipes.theirs[2:3]
        close_all({*pipes.theirs} - {*outlets})
        go, stdin, stdout, stderr, status = pipes.ours
        return Jail(
            slot=slot,
            pidfd=first,
            worker=worker,
            pid=pid,
            go=go,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            status=status,
            group=group,
            ending_signal=signal.SIGTERM if self._tier == "landlock" else signal.SIGKILL,
            outlets=outlets,
            own_tasks=2 if self._tier == "landlock" else 1,
            listeners=tuple(listeners),
        )

    def _lay_out(self, slot: str, undoing: ExitStack) -> tuple[ControlGroup, Plumbing, list[int]]:
        """Create a jail's control group, its pipes and the descriptors for joining the group."""
        try:
            group = self._groups.open_group(slot)
            undoing.callback(group.remove)
            pipes = lay_pipes()
            undoing.callback(pipes.close)
            return group, pipes, group.open_entries()
        except OSError as error:
            raise _exhausted(error) from error

    async def _make_joined(
        self,
        stage: int,
        slot: str,
        pipes: Plumbing,
        entries: list[int],
        *,
        ahead: bool,
        fit: JailOptions,
    ) -> list[int]:
        """Have the bare zygote create PID 1, and the zygote with the libraries the worker."""
        *_, status = pipes.theirs
        try:
            waits, tells = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            raise _exhausted(error) from error
        try:
            vacate = {"do": "vacate", "slot": slot, **fit.order()}
            _, held = await self._ask(self._orders[0], vacate, (status, tells, *entries))
        except BaseException:
            close_all((waits, tells))
            raise
        os.close(tells)
        first, *others = held
        namespaces, listeners = others[:_NAMESPACES], others[_NAMESPACES:]
        try:
            join = {"do": "join", "ahead": ahead}
            theirs = (*pipes.theirs, waits, *namespaces, *entries)
            _, (worker,) = await self._ask(self._orders[stage], join, theirs)
        except BaseException:
            signal.pidfd_send_signal(first, signal.SIGKILL)
            close_all((first, *listeners))
            raise
        finally:
            close_all((waits, *namespaces))
        return [first, worker, *listeners]

    def discard(self, cell: Jail) -> None:
        """Kill a jail; its resources are released after its last process is dead."""
        cell.kill()
        self._dying.add(cell)

    async def bury_the_dead(self) -> None:
        """Release the resources of dead jails until the engine closes."""
        async with self._dying:
            while self.alive:
                slots = await self._dying.bury_some()
                # A dead engine's slots are gone with it.
                if slots and self.alive:
                    with suppress(ChannelClosedError):
                        await self._mounts.tell({"do": "release", "slots": slots})

    def check_alive(self) -> bool:
        """Whether the mounts process and the first zygote are alive, judging by their sockets."""
        if self._mounts.hung_up() or self._orders[0].hung_up():
            self.alive = False
        return self.alive

    async def open_box(self, size_bytes: int) -> Workspace:
        """Create an empty workspace of limited size."""
        name = str(next(self._numbers))
        question = {"do": "open", "box": name, "size_bytes": size_bytes}
        _, (workspace,) = await self._ask(self._mounts, question)
        return Workspace(name=name, size_bytes=size_bytes, workspace=workspace)

    async def close_box(self, name: str) -> None:
        if self.alive:
            with suppress(ChannelClosedError):
                await self._mounts.tell({"do": "close", "box": name})

    async def bind(self, box: str, cell: Jail) -> None:
        """Mount a workspace into a waiting jail."""
        await self._ask(self._mounts, {"do": "bind", "box": box, "slot": cell.slot})

    async def _ask(
        self, channel: Channel, question: Mapping[str, object], descriptors: Sequence[int] = ()
    ) -> Answer:
        return await self._translate(channel.ask(question, descriptors))

    async def _translate(self, asking: Awaitable[Answer]) -> Answer:
        try:
            return await asking
        except ChannelClosedError as error:
            self.alive = False
            raise SandboxUnavailableError(
                f"the native sandbox is gone: {error}", dispatch="never_started"
            ) from error
        except RefusedError as error:
            raise SandboxUnavailableError(
                f"the kernel refused: {error}",
                dispatch="never_started",
                hint=TOO_FEW_HINT if os.strerror(errno.EMFILE) in str(error) else "",
            ) from error

    async def close(self) -> None:
        """Stop everything that runs and wait until the launcher has cleaned up."""
        self.alive = False
        self._dying.wake()
        for channel in (*self._orders, self._mounts):
            channel.close()
        os.close(self._life)
        with anyio.move_on_after(_STOP_WITHIN_S) as waiting:
            await self._warden.wait()
        if waiting.cancelled_caught:
            self._warden.kill()
            await self._warden.wait()


def _exhausted(error: OSError) -> SandboxUnavailableError:
    return SandboxUnavailableError(
        f"out of descriptors or control groups: {error}",
        dispatch="never_started",
        hint=TOO_FEW_HINT,
    )
