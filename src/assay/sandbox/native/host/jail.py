"""One prepared process, seen from the trusted side: its descriptors and its control group."""

import os
import select
import signal
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import anyio

from assay.sandbox.native.host import exit_detection
from assay.sandbox.native.kernel.cgroups import ControlGroup

_CHUNK = 1 << 16


class Descriptor:
    """A descriptor that does not block and is closed once, however often that is asked for."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        os.set_blocking(number, False)
        self.number = number

    def read_some(self) -> bytes:
        """Return what is there; empty at the end. For when something is known to be there."""
        return os.read(self.number, _CHUNK)

    async def read(self) -> bytes:
        """Return what is there, waiting for it; empty at the end."""
        while True:
            try:
                return self.read_some()
            except BlockingIOError:
                await anyio.wait_readable(self.number)

    def write_some(self, data: memoryview) -> memoryview:
        """Write what fits and return the rest; a reader that is gone wants nothing more."""
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
class JailOptions:
    """What a cell has that others do not. Cells ahead of need have nothing of this."""

    layer: str = ""
    """The key of the packages that appear in it."""
    ports: tuple[int, ...] = ()
    """Of hosts that it may reach."""

    def order(self) -> Mapping[str, object]:
        network = {"ports": self.ports} if self.ports else {}
        return network | ({"layer": self.layer} if self.layer else {})


PLAIN = JailOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Jail:
    """Jailed, locked in and waiting for its program."""

    slot: str
    pidfd: int
    """Of PID 1."""
    worker: int | None
    """A pidfd too, where the worker is not a child of PID 1."""
    go: Descriptor
    stdin: Descriptor
    stdout: Descriptor
    stderr: Descriptor
    status: Descriptor
    group: ControlGroup
    ending_signal: signal.Signals
    """What makes PID 1 of the cell take everything else along: the kernel does it on SIGKILL
    where there is a pid namespace, PID 1 itself on SIGTERM where there is none."""
    pid: int | None = None
    """The number of PID 1, where `pidfd` is only readable like one."""
    outlets: tuple[int, ...] = ()
    """Our own copies of the ends that the program writes its output to. While we have one, that
    stream cannot end, and we are not woken for that just before we are told how the program ended.
    Where the worker is not a child of PID 1, the end of stderr is a hint; see
    `exit_detection.py`."""

    own_tasks: int = 1
    """PID 1, and a thread of it in the Landlock tier: they are no processes of the program."""
    listeners: tuple[int, ...] = ()
    """Where the connections of the program end, if its sandbox may reach some hosts."""

    def kill(self) -> None:
        """End everything in the cell."""
        with suppress(ProcessLookupError):
            if self.pid is None:
                signal.pidfd_send_signal(self.pidfd, self.ending_signal)
            elif not _readable(self.pidfd):
                # It lives, so the number is still its own.
                os.kill(self.pid, self.ending_signal)

    def close(self) -> None:
        for descriptor in (self.go, self.stdin, self.stdout, self.stderr, self.status):
            descriptor.close()
        close_all((*self.outlets, *self.listeners))
        os.close(self.pidfd)
        if self.worker is not None:
            os.close(self.worker)

    def alone(self) -> bool:
        """Whether PID 1 is all that is left, where a control group can tell."""
        return self.group.processes() == 1

    def visible_worker(self) -> int | None:
        """Return the worker's pid where we can see how it ends before it is gone; else None."""
        pid = None if self.worker is None else _pid_of(self.worker)
        return pid if pid is not None and exit_detection.may_be_seen(pid) else None

    def host_pids(self) -> list[int]:
        """PID 1 of the cell, and the worker if that is not its child, as this process sees them."""
        if self.pid is not None:
            return [self.pid]
        known = (self.pidfd,) if self.worker is None else (self.pidfd, self.worker)
        return [pid for pid in map(_pid_of, known) if pid is not None]


def _readable(descriptor: int) -> bool:
    # Not `select.select`, which takes no number above 1023.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plumbing:
    """What a cell is connected to: five ends for the process, five for us."""

    theirs: tuple[int, ...]
    ours: tuple[Descriptor, ...]

    def close(self) -> None:
        for descriptor in self.ours:
            descriptor.close()
        close_all(self.theirs)


def lay_pipes() -> Plumbing:
    """Make go, stdin, stdout, stderr and status, in that order."""
    theirs: list[int] = []
    ours: list[Descriptor] = []
    try:
        # Not a pipe: an interpreter is sent descriptors on it.
        end, far_end = socket.socketpair()
        theirs.append(far_end.detach())
        ours.append(Descriptor(end.detach()))
        for to_process in (True, False, False, False):
            reading, writing = os.pipe2(os.O_CLOEXEC)
            theirs.append(reading if to_process else writing)
            ours.append(Descriptor(writing if to_process else reading))
    except OSError:
        close_all(theirs)
        for descriptor in ours:
            descriptor.close()
        raise
    return Plumbing(theirs=tuple(theirs), ours=tuple(ours))


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
