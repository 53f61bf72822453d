"""A running engine: creates jails and workspaces, and keeps some of them ready.

The pools prepare ahead of need, so that a sandbox and an execution start without delay. A pool is
never a limit: if it is empty, there is a new jail or workspace.
"""

import errno
import itertools
import json
import os
import signal
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import anyio
import anyio.abc

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import Isolation, Limits
from assay.sandbox.native.guest.jail_spec import JailSpec
from assay.sandbox.native.guest.pid1 import NAMESPACES
from assay.sandbox.native.host.jail import Jail, Reaper, close_all, close_pipes, open_pipes
from assay.sandbox.native.host.messages import Answer, Channel, ChannelClosedError, RefusedError
from assay.sandbox.native.host.workspace_layers import WorkspaceLayers
from assay.sandbox.native.kernel.cgroups import ControlGroups
from assay.sandbox.native.kernel.open_files import TOO_FEW_HINT

_HOLD_BACK_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A workspace of limited size that no sandbox has used yet."""

    name: str
    size_bytes: int
    workspace: int
    """A directory descriptor; the owner of the workspace closes it."""
    changed: int | None = None
    """Another one, of the folder that holds the changes, if a layer is mounted below."""


class WorkspaceMaker(Protocol):
    """Creates and removes workspaces: the engine."""

    def check_alive(self) -> bool: ...

    def open_workspace(self, size_bytes: int) -> Awaitable[Workspace]: ...

    def close_workspace(self, name: str) -> Awaitable[None]: ...


class WorkspacePool:
    """Keeps one workspace ready, first of the initial size, then of the size requested last."""

    def __init__(self, maker: WorkspaceMaker, size_bytes: int) -> None:
        self._maker = maker
        self._size_bytes = size_bytes
        self._spare: Workspace | None = None
        self._wanted = anyio.Event()

    async def take(self, size_bytes: int) -> Workspace:
        """Return an empty workspace; raises like `open_workspace` of the maker."""
        self._size_bytes = size_bytes
        spare = self._spare
        try:
            if spare is None or spare.size_bytes != size_bytes or not self._maker.check_alive():
                return await self._maker.open_workspace(size_bytes)
            self._spare = None
            return spare
        finally:
            self._wanted.set()

    def wake(self) -> None:
        """Wake `keep_filled`, so that it sees that the maker is gone."""
        self._wanted.set()

    async def keep_filled(self) -> None:
        """Keep a workspace ready until the maker is gone or refuses."""
        try:
            with suppress(SandboxUnavailableError):
                while self._maker.check_alive():
                    await self._wanted.wait()
                    self._wanted = anyio.Event()
                    # The caller has a program to run; creating a workspace now would slow it down.
                    await anyio.sleep(_HOLD_BACK_S)
                    await self.fill()
        finally:
            if self._spare is not None:
                os.close(self._spare.workspace)
                self._spare = None

    async def fill(self) -> None:
        """Create a workspace if there is none; raises like `open_workspace` of the maker."""
        if self._spare is not None and self._spare.size_bytes != self._size_bytes:
            unfit, self._spare = self._spare, None
            os.close(unfit.workspace)
            await self._maker.close_workspace(unfit.name)
        if self._spare is None:
            self._spare = await self._maker.open_workspace(self._size_bytes)


class JailPool:
    """The prepared jails of one stage of an engine."""

    def __init__(self, engine: "Engine", stage: int, size: int) -> None:
        self._engine = engine
        self._stage = stage
        self._size = size
        self.ready = stage == 0
        self._waiting: deque[Jail] = deque()
        self._wanted = anyio.Event()

    async def keep_filled(self) -> None:
        """Keep the pool filled until the engine closes."""
        if not self.ready:
            with suppress(SandboxUnavailableError):
                await self._engine.await_stage(self._stage)
                self.ready = True
        try:
            while self.ready and self._engine.alive:
                self._wanted = anyio.Event()
                await self._fill()
                await self._wanted.wait()
                # The execution that took a jail is running; preparing another now would slow it
                # down.
                await anyio.sleep(_HOLD_BACK_S)
        finally:
            self.empty()

    async def _fill(self) -> None:
        # The next `take` reports the reason.
        with suppress(SandboxUnavailableError):
            while len(self._waiting) < self._size:
                self._waiting.append(await self._engine.make_jail(self._stage, ahead=True))

    def wake(self) -> None:
        """Wake `keep_filled`, so that it sees that the engine is gone."""
        self._wanted.set()

    async def take(self) -> Jail:
        """Return a prepared jail or create one.

        Raises:
            SandboxUnavailableError: If no jail can be created. Nothing has started.
        """
        if self._waiting:
            jail = self._waiting.popleft()
        else:
            jail = await self._engine.make_jail(self._stage, ahead=False)
        self._wanted.set()
        return jail

    def empty(self) -> None:
        while self._waiting:
            self._engine.discard(self._waiting.popleft())


_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 10.0
_NAMESPACES: Final = 1 + len(NAMESPACES)
"""The pid namespace, and the namespaces that a worker joins itself."""


class Engine:
    """One launcher, its zygotes and the mounts process. If one of them dies, the engine is dead."""

    def __init__(
        self,
        spec: JailSpec,
        groups: ControlGroups,
        *,
        launcher: anyio.abc.Process,
        zygotes: Sequence[Channel],
        mounts: Channel,
        layers: Channel,
        life: int,
        pool_size: int,
    ) -> None:
        self.tier = spec.tier
        self.isolation = Isolation.ISOLATED if spec.tier == "namespaces" else Isolation.RESTRICTED
        self.groups = groups
        self.owner = spec.drop_to_id
        """The uid that owns the files of workspaces, if it is not our own."""
        self.scratch = Path(spec.scratch)
        """The folder of the workspaces in the Landlock tier."""
        self.stages = spec.stages
        self.launcher_pid = launcher.pid
        self.alive = True
        self.jails = tuple(JailPool(self, stage, pool_size) for stage in range(len(zygotes)))
        self.workspaces = WorkspacePool(self, Limits().disk_mb << 20)
        self.layers = WorkspaceLayers(self)
        self.mounts_layers = spec.tier == "namespaces"
        self._launcher = launcher
        self._zygotes = zygotes
        self._mounts = mounts
        self._layer_mounter = layers
        self._life = life
        self._numbers = itertools.count(1)
        self._reaper = Reaper()

    async def start_pools(self, tasks: anyio.abc.TaskGroup) -> None:
        """Prepare the first workspace, then keep the pools filled until the engine closes."""
        with suppress(SandboxUnavailableError):
            await self.workspaces.fill()
        tasks.start_soon(self.reap)
        for pool in (self.workspaces, *self.jails):
            tasks.start_soon(pool.keep_filled)

    async def await_stage(self, stage: int) -> None:
        """Wait until the zygote of a stage has imported its modules.

        Raises:
            SandboxUnavailableError: If the zygote is gone or reports an error.
        """
        await self._translate(self._zygotes[stage].hear(within_s=_START_TIMEOUT_S))

    async def make_jail(
        self, stage: int, *, ahead: bool, layer: str = "", ports: Sequence[int] = ()
    ) -> Jail:
        """Have the zygote of a stage clone a process into new namespaces.

        A jail that is made `ahead` of need does all its preparation now. `layer` is the key of the
        package layer to mount; `ports` are those of the allowed hosts.

        Raises:
            SandboxUnavailableError: If the zygote is gone or reports an error. Nothing has started.
        """
        slot = str(next(self._numbers))
        order: dict[str, object] = {"slot": slot, "ahead": ahead}
        if ports:
            order["ports"] = ports
        if layer:
            order["layer"] = layer
        with ExitStack() as undoing:
            try:
                group = self.groups.open_group(slot)
                undoing.callback(group.remove)
                theirs, ours = open_pipes()
                undoing.callback(close_pipes, theirs, ours)
                entries = group.open_entries()
            except OSError as error:
                raise _exhausted(error) from error
            pid = worker = None
            try:
                if stage == 0 or self.tier != "namespaces":
                    passed = (*theirs, *entries)
                    lead = order | {"do": "lead"}
                    answer, made = await self._ask(self._zygotes[stage], lead, passed)
                    first, *listeners = made
                    pid = int(answer["pid"]) if self.tier == "contained" else None
                else:
                    made = await self._make_joined(stage, order, theirs, entries)
                    first, worker, *listeners = made
            finally:
                close_all(entries)
            undoing.pop_all()
        # If the worker is not a child of PID 1, the end of stderr is a hint; see `wait_status`.
        outlets = tuple(theirs[2:4] if worker is None else theirs[2:3])
        close_all({*theirs} - {*outlets})
        go, stdin, stdout, stderr, status = ours
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
            ending_signal=signal.SIGTERM if self.tier == "landlock" else signal.SIGKILL,
            outlets=outlets,
            own_tasks=2 if self.tier == "landlock" else 1,
            listeners=tuple(listeners),
        )

    async def _make_joined(
        self, stage: int, order: dict[str, object], theirs: Sequence[int], entries: Sequence[int]
    ) -> list[int]:
        """Have the bare zygote create PID 1, and the zygote with the libraries the worker."""
        *_, status = theirs
        try:
            waits, tells = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            raise _exhausted(error) from error
        try:
            vacate = order | {"do": "vacate", "ahead": False}
            _, held = await self._ask(self._zygotes[0], vacate, (status, tells, *entries))
        except BaseException:
            close_all((waits, tells))
            raise
        os.close(tells)
        first, *others = held
        namespaces, listeners = others[:_NAMESPACES], others[_NAMESPACES:]
        try:
            join = {"do": "join", "ahead": order["ahead"]}
            passed = (*theirs, waits, *namespaces, *entries)
            _, (worker,) = await self._ask(self._zygotes[stage], join, passed)
        except BaseException:
            signal.pidfd_send_signal(first, signal.SIGKILL)
            close_all((first, *listeners))
            raise
        finally:
            close_all((waits, *namespaces))
        return [first, worker, *listeners]

    def discard(self, jail: Jail) -> None:
        """Kill a jail; its resources are released after its last process is dead."""
        jail.kill()
        self._reaper.add(jail)

    async def reap(self) -> None:
        """Release the resources of dead jails until the engine closes."""
        async with self._reaper:
            while self.alive:
                slots = await self._reaper.reap_some()
                # A dead engine's slots are gone with it.
                if slots and self.alive:
                    with suppress(ChannelClosedError):
                        await self._mounts.tell({"do": "release", "slots": slots})

    def check_alive(self) -> bool:
        """Whether the mounts process and the first zygote are alive, judging by their sockets."""
        if self._mounts.hung_up() or self._zygotes[0].hung_up():
            self.alive = False
        return self.alive

    async def open_workspace(self, size_bytes: int, layer: str = "") -> Workspace:
        """Create a workspace of limited size that is empty or starts with a mounted layer."""
        name = str(next(self._numbers))
        question = {"do": "open", "box": name, "size_bytes": size_bytes, "start": layer}
        _, (workspace, *changed) = await self._ask(self._mounts, question)
        return Workspace(
            name=name,
            size_bytes=size_bytes,
            workspace=workspace,
            changed=changed[0] if changed else None,
        )

    async def mount_layer(self, folder: Path, name: str) -> None:
        """Mount a layer where the jails' namespace has it, under a name.

        Raises:
            SandboxUnavailableError: If the kernel refuses, or the engine is dead.
        """
        _, (mount,) = await self._ask(self._layer_mounter, {"folder": str(folder)})
        try:
            await self._ask(self._mounts, {"do": "attach", "start": name}, (mount,))
        finally:
            os.close(mount)

    async def unmount_layer(self, name: str) -> None:
        if self.alive:
            with suppress(ChannelClosedError):
                await self._mounts.tell({"do": "detach", "start": name})

    async def close_workspace(self, name: str) -> None:
        if self.alive:
            with suppress(ChannelClosedError):
                await self._mounts.tell({"do": "close", "box": name})

    async def bind(self, workspace: str, jail: Jail) -> None:
        """Mount a workspace into a waiting jail."""
        await self._ask(self._mounts, {"do": "bind", "box": workspace, "slot": jail.slot})

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
        for pool in self.jails:
            pool.empty()
        self._reaper.wake()
        for channel in (*self._zygotes, self._mounts, self._layer_mounter):
            channel.close()
        os.close(self._life)
        with anyio.move_on_after(_STOP_TIMEOUT_S) as waiting:
            await self._launcher.wait()
        if waiting.cancelled_caught:
            self._launcher.kill()
            await self._launcher.wait()
        for pool in (self.workspaces, *self.jails):
            pool.wake()


def _exhausted(error: OSError) -> SandboxUnavailableError:
    return SandboxUnavailableError(
        f"out of descriptors or control groups: {error}",
        dispatch="never_started",
        hint=TOO_FEW_HINT,
    )


async def await_readiness(jail: Jail) -> None:
    """Wait until the worker of a jail is confined and waits for its program.

    Raises:
        SandboxUnavailableError: If the worker fails. Nothing has started.
    """
    text = b""
    while not text.endswith(b"\n"):
        piece = await jail.status.read()
        if not piece:
            raise SandboxUnavailableError("the sandbox died early", dispatch="never_started")
        text += piece
    report = json.loads(text.splitlines()[0])
    if "ready" not in report:
        raise SandboxUnavailableError(
            f"the sandbox could not be locked: {report}", dispatch="never_started"
        )
