"""The supervisor's view of a running engine: creates jails and workspaces, and keeps some ready.

`Channel` carries requests, answers and descriptors over a socket that preserves message boundaries.
`JailPool` and `WorkspacePool` prepare ahead of need, so that a sandbox and an execution start
without delay. A pool is never a limit: if it is empty, there is a new jail or workspace.
"""

import array
import errno
import itertools
import json
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import anyio
import anyio.abc

from assay.contracts.errors import SandboxUnavailableError
from assay.sandbox.native.guest.jail_plan import Tier
from assay.sandbox.native.guest.pid1 import NAMESPACES
from assay.sandbox.native.host.jail import (
    PLAIN,
    Jail,
    JailOptions,
    Plumbing,
    Reaper,
    close_all,
    lay_pipes,
)
from assay.sandbox.native.kernel.cgroups import ControlGroup, ControlGroups
from assay.sandbox.native.kernel.open_files import TOO_FEW_HINT

Answer = tuple[dict[str, Any], list[int]]

_LARGEST_ANSWER: Final = 4096
_MOST_DESCRIPTORS: Final = 64
_ANSWER_WITHIN_S: Final = 30.0


class ChannelClosedError(Exception):
    """The other side is gone, or violates the protocol."""


class RefusedError(Exception):
    """The other side is alive and returned an error."""


class Channel:
    """The supervisor's end of the connection to a zygote or to the mounts process."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._end = end
        self._turn = anyio.Lock()
        self._broken = False

    async def ask(self, question: Mapping[str, object], descriptors: Sequence[int] = ()) -> Answer:
        """Send one request and wait for its answer; cancellation waits for the answer too.

        Raises:
            ChannelClosedError: If no answer can arrive, now or later.
            RefusedError: If the answer is an error.
        """
        async with self._turn:
            # The next request would take an unread answer for its own.
            with anyio.CancelScope(shield=True):
                self._must_be_open()
                await self._send(json.dumps(question).encode(), descriptors)
                return await self.hear()
        raise AssertionError("a shielded scope that is not handed out cannot be cancelled")

    async def tell(self, message: Mapping[str, object]) -> None:
        """Send a message that has no answer. Delivery is not confirmed.

        Raises:
            ChannelClosedError: If the channel is closed.
        """
        async with self._turn:
            self._must_be_open()
            await self._send(json.dumps(message).encode(), ())

    def hung_up(self) -> bool:
        """Whether the other side is known to be gone."""
        if self._broken:
            return True
        events = select.poll()
        events.register(self._end, 0)
        return bool(events.poll(0))

    async def hear(self, *, within_s: float = _ANSWER_WITHIN_S) -> Answer:
        """Wait for one message; raises like `ask`."""
        self._must_be_open()
        try:
            with anyio.fail_after(within_s):
                await anyio.wait_readable(self._end)
            message, received, whole = _receive(self._end)
        except (OSError, TimeoutError, anyio.ClosedResourceError) as error:
            self._broken = True
            raise ChannelClosedError(str(error)) from error
        if not whole:
            # The kernel drops descriptors that exceed this process's limit.
            _close_all(received)
            raise RefusedError(os.strerror(errno.EMFILE))
        return self._understand(message, received)

    def _must_be_open(self) -> None:
        if self._broken:
            raise ChannelClosedError("the other side is gone")

    def _understand(self, message: bytes, received: list[int]) -> Answer:
        try:
            answer = json.loads(message)
            refused = answer.get("error")
        except (ValueError, AttributeError, RecursionError) as error:
            self._broken = True
            _close_all(received)
            raise ChannelClosedError("the other side is gone") from error
        if refused is not None:
            _close_all(received)
            raise RefusedError(str(refused))
        return answer, received

    async def _send(self, message: bytes, descriptors: Sequence[int]) -> None:
        while True:
            try:
                socket.send_fds(self._end, [message], list(descriptors))
            except BlockingIOError:
                await anyio.wait_writable(self._end)
            except OSError as error:
                self._broken = True
                raise ChannelClosedError(str(error)) from error
            else:
                return

    def close(self) -> None:
        self._broken = True
        # Wakes the task that waits for an answer: there will be none.
        anyio.notify_closing(self._end)
        self._end.close()


def _receive(end: socket.socket) -> tuple[bytes, list[int], bool]:
    """Receive like `socket.recv_fds`, but with descriptors that programs do not inherit.

    The last item tells whether all descriptors that were sent have arrived.
    """
    space = socket.CMSG_LEN(_MOST_DESCRIPTORS * array.array("i").itemsize)
    message, notes, flags, _ = end.recvmsg(_LARGEST_ANSWER, space, socket.MSG_CMSG_CLOEXEC)
    received = array.array("i")
    for level, kind, data in notes:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return message, list(received), not flags & socket.MSG_CTRUNC


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


_HOLD_BACK_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A workspace of limited size that no sandbox has used yet."""

    name: str
    size_bytes: int
    workspace: int
    """A directory descriptor; the owner of the workspace closes it."""


class BoxMaker(Protocol):
    """Creates and removes workspaces."""

    def check_alive(self) -> bool: ...

    def open_box(self, size_bytes: int) -> Awaitable[Workspace]: ...

    def close_box(self, name: str) -> Awaitable[None]: ...


class WorkspacePool:
    """Keeps one workspace ready, first of the initial size, then of the size requested last."""

    def __init__(self, maker: BoxMaker, size_bytes: int) -> None:
        self._maker = maker
        self._size_bytes = size_bytes
        self._spare: Workspace | None = None
        self._wanted = anyio.Event()

    async def take(self, size_bytes: int) -> Workspace:
        """Return an empty workspace; raises like `open_box` of the maker."""
        self._size_bytes = size_bytes
        spare = self._spare
        try:
            if spare is None or spare.size_bytes != size_bytes or not self._maker.check_alive():
                return await self._maker.open_box(size_bytes)
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
        """Create a workspace if there is none; raises like `open_box` of the maker."""
        if self._spare is not None and self._spare.size_bytes != self._size_bytes:
            box, self._spare = self._spare, None
            os.close(box.workspace)
            await self._maker.close_box(box.name)
        if self._spare is None:
            self._spare = await self._maker.open_box(self._size_bytes)


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


class JailPool:
    """The prepared jails of one stage of an engine."""

    def __init__(self, engine: Engine, stage: int, size: int) -> None:
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
                self._waiting.append(await self._engine.make_cell(self._stage, ahead=True))

    def wake(self) -> None:
        """Wake `keep_filled`, so that it sees that the engine is gone."""
        self._wanted.set()

    async def take(self) -> Jail:
        """Return a prepared jail or create one.

        Raises:
            SandboxUnavailableError: If no jail can be created. Nothing has started.
        """
        if self._waiting:
            cell = self._waiting.popleft()
        else:
            cell = await self._engine.make_cell(self._stage, ahead=False)
        self._wanted.set()
        return cell

    def empty(self) -> None:
        while self._waiting:
            self._engine.discard(self._waiting.popleft())


async def await_readiness(cell: Jail) -> None:
    """Wait until the worker of a jail is confined and waits for its program.

    Raises:
        SandboxUnavailableError: If the worker fails. Nothing has started.
    """
    text = b""
    while not text.endswith(b"\n"):
        piece = await cell.status.read()
        if not piece:
            raise SandboxUnavailableError("the sandbox died early", dispatch="never_started")
        text += piece
    report = json.loads(text.splitlines()[0])
    if "ready" not in report:
        raise SandboxUnavailableError(
            f"the sandbox could not be locked: {report}", dispatch="never_started"
        )
