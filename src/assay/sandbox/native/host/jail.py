"""One prepared jail on the trusted side: its descriptors, its control group, and its end.

A program that has exited is detected while the kernel still frees its memory, which takes longer
than most programs run. The reaper releases the resources of killed jails after their last process
is dead, in batches: one wakeup instead of one per jail.
"""

import os
import select
import signal
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import anyio

from assay.sandbox.native.kernel.cgroups import ControlGroup

_EXITING: Final = 0x4
"""PF_EXITING, among the flags of a process."""
# Indexes of the fields after the name in `/proc/PID/stat`.
_FLAGS, _THREADS, _SIZE, _STACK, _EXIT_CODE = 6, 17, 20, 25, 49


def may_be_seen(pid: int) -> bool:
    """Whether the kernel shows this process the exit code of another, live one.

    Where it does not, it shows 0, as for a success. That depends on the owner of the process, and
    on whether a live process is dumpable. So this is checked before the program starts.
    """
    fields = _stat(pid)
    return bool(fields) and int(fields[_STACK]) != 0


def wait_status(pid: int) -> int | None:
    """Return the wait status of a process that has begun to exit, as `waitpid` would; else None.

    That is so once it has released its memory: no code can run in it, and nothing hides it.
    """
    fields = _stat(pid)
    if not fields or not int(fields[_FLAGS]) & _EXITING:
        return None
    if int(fields[_SIZE]) != 0 or int(fields[_THREADS]) != 1:
        return None
    return int(fields[_EXIT_CODE])


def _stat(pid: int) -> list[bytes]:
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):  # gone, or exiting at this moment
        return []
    try:
        return os.read(descriptor, 4096).rpartition(b")")[2].split()
    except ProcessLookupError:
        return []
    finally:
        os.close(descriptor)


_CHUNK = 1 << 16


class Descriptor:
    """A non-blocking descriptor; `close` may be called more than once."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        os.set_blocking(number, False)
        self.number = number

    def read_some(self) -> bytes:
        """Return what is available; empty at the end. Call it only if data is available."""
        return os.read(self.number, _CHUNK)

    async def read(self) -> bytes:
        """Wait for data and return it; empty at the end."""
        while True:
            try:
                return self.read_some()
            except BlockingIOError:
                await anyio.wait_readable(self.number)

    def write_some(self, data: memoryview) -> memoryview:
        """Write what fits and return the rest; empty if the reader is gone."""
        try:
            while data:
                data = data[os.write(self.number, data) :]
        except BlockingIOError:
            return data
        except BrokenPipeError:
            return data[:0]
        return data

    def close(self) -> None:
        if self.number >= 0:
            os.close(self.number)
            self.number = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Jail:
    """A confined process that waits for its program."""

    slot: str
    pidfd: int
    """Of PID 1."""
    worker: int | None
    """A pidfd too; set if the worker is not a child of PID 1."""
    go: Descriptor
    stdin: Descriptor
    stdout: Descriptor
    stderr: Descriptor
    status: Descriptor
    group: ControlGroup
    ending_signal: signal.Signals
    """The signal to PID 1 that ends the whole jail. With a pid namespace, the kernel does this
    on SIGKILL. Without one, PID 1 does it itself on SIGTERM."""
    pid: int | None = None
    """The pid of PID 1 where `pidfd` only becomes readable and cannot send signals."""
    outlets: tuple[int, ...] = ()
    """Our copies of the program's writing ends of its output. While they are open, the streams
    do not end, so the supervisor is not woken just before the exit status arrives. If the
    worker is not a child of PID 1, the end of stderr is a hint; see `wait_status`."""

    own_tasks: int = 1
    """PID 1, and its extra thread in the Landlock tier: they do not count as the program's."""
    listeners: tuple[int, ...] = ()
    """Sockets that accept the program's connections, if its sandbox may reach some hosts."""

    def kill(self) -> None:
        """Kill everything in the jail."""
        with suppress(ProcessLookupError):
            if self.pid is None:
                signal.pidfd_send_signal(self.pidfd, self.ending_signal)
            elif not _readable(self.pidfd):
                # The process lives, so its pid is still valid.
                os.kill(self.pid, self.ending_signal)

    def close(self) -> None:
        for descriptor in (self.go, self.stdin, self.stdout, self.stderr, self.status):
            descriptor.close()
        close_all((*self.outlets, *self.listeners))
        os.close(self.pidfd)
        if self.worker is not None:
            os.close(self.worker)

    def alone(self) -> bool:
        """Whether only PID 1 is left, where a control group can tell."""
        return self.group.processes() == 1

    def visible_worker(self) -> int | None:
        """Return the worker's pid if its exit code is visible before it is gone; else None."""
        pid = None if self.worker is None else _pid_of(self.worker)
        return pid if pid is not None and may_be_seen(pid) else None

    def host_pids(self) -> list[int]:
        """Return the pids, as seen here, of PID 1 and of a worker that is not its child."""
        if self.pid is not None:
            return [self.pid]
        known = (self.pidfd,) if self.worker is None else (self.pidfd, self.worker)
        return [pid for pid in map(_pid_of, known) if pid is not None]


def _readable(descriptor: int) -> bool:
    # `select.select` accepts no descriptor above 1023.
    events = select.poll()
    events.register(descriptor, select.POLLIN)
    return bool(events.poll(0))


def _pid_of(pidfd: int) -> int | None:
    with open(f"/proc/self/fdinfo/{pidfd}") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name == "Pid" and int(value) > 0:
                return int(value)
    return None


def open_pipes() -> tuple[list[int], list[Descriptor]]:
    """Create go, stdin, stdout, stderr and status, in that order: the jail's ends, then ours."""
    theirs: list[int] = []
    ours: list[Descriptor] = []
    try:
        # A socket, because an interpreter receives descriptors on it.
        end, far_end = socket.socketpair()
        theirs.append(far_end.detach())
        ours.append(Descriptor(end.detach()))
        for to_process in (True, False, False, False):
            reading, writing = os.pipe2(os.O_CLOEXEC)
            theirs.append(reading if to_process else writing)
            ours.append(Descriptor(writing if to_process else reading))
    except OSError:
        close_pipes(theirs, ours)
        raise
    return theirs, ours


def close_pipes(theirs: Iterable[int], ours: Iterable[Descriptor]) -> None:
    close_all(theirs)
    for descriptor in ours:
        descriptor.close()


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


_ROUND_S: Final = 0.02
_MOST_AT_ONCE: Final = 100


class Reaper:
    """Killed jails whose resources are not released yet."""

    def __init__(self) -> None:
        self._jails: list[Jail] = []
        self._wanted = anyio.Event()
        self._given_up = False

    def add(self, jail: Jail) -> None:
        """Release a jail after its death, or immediately if the reaper has closed."""
        if self._given_up:
            _release(jail)
            return
        self._jails.append(jail)
        self._wanted.set()

    def wake(self) -> None:
        """Wake `reap_some`."""
        self._wanted.set()

    async def reap_some(self) -> list[str]:
        """Wait for killed jails, release the dead ones, and return their slots."""
        if not self._jails:
            self._wanted = anyio.Event()
            await self._wanted.wait()
        await anyio.sleep(_ROUND_S)
        ended = select.poll()
        for jail in self._jails[:_MOST_AT_ONCE]:
            ended.register(jail.pidfd, select.POLLIN)
        dead = {pidfd for pidfd, _ in ended.poll(0)}
        reaped = [jail for jail in self._jails if jail.pidfd in dead]
        self._jails = [jail for jail in self._jails if jail.pidfd not in dead]
        return [_release(jail) for jail in reaped]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        """Release all jails, dead or not: the engine is closing."""
        self._given_up = True
        for jail in self._jails:
            _release(jail)
        self._jails = []


def _release(jail: Jail) -> str:
    jail.close()
    jail.group.remove()
    return jail.slot
