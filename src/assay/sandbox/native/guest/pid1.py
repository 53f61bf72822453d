"""The first process of each execution: builds the jail, starts the worker, reports how it ended.

The program cannot reach it: it is not dumpable and the first in its pid namespace. In a jail that
is prepared ahead of need, it becomes a minimal program that waits to be killed, because a PID 1
that stays Python keeps about two megabytes of pages for nothing.
"""

import fcntl
import json
import os
import resource
import signal
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NoReturn

from assay.sandbox.native.guest import jail_mounts, landlock_chmod, loopback, worker
from assay.sandbox.native.guest.jail_spec import HOSTNAME, INNER_ID, become
from assay.sandbox.native.guest.process_tree import children_of, descendants_of
from assay.sandbox.native.guest.worker import Confinement, Descriptors
from assay.sandbox.native.kernel import libc, open_files, syscalls

_READY: Final = 3
"""The descriptor on which the program reports that the jail is ready."""
_ABOVE_ALL_OTHERS: Final = 1024
"""Or the highest number that the limit of open files allows."""
_PR_SET_DUMPABLE: Final = 4
_ADDRESS: Final = 0x10000000
_HEADERS: Final = 64 + 2 * 56
_WORD: Final = b"1".ljust(16, b"\0")
"""The report, right behind the headers."""
_EXECUTABLE, _CURRENT = 2, 1
_LOADED, _STACK = 1, 0x6474E551
_READ_AND_RUN, _READ_AND_WRITE = 5, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The instruction encoding for one processor architecture."""

    name: str
    elf: int
    call: Callable[..., bytes]
    """Encodes a system call with its number and up to four arguments."""
    jump: Callable[[int], bytes]
    """Encodes a jump backwards by a number of bytes, counted from its own start."""


def open_program() -> int | None:
    """Return a descriptor of the program, or None if it is not available."""
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        return None
    with suppress(OSError), ExitStack() as opened:
        memory = os.memfd_create("init")
        opened.callback(os.close, memory)
        os.write(memory, program_for(machine))
        # Reopened, because a file that is open for writing cannot be executed.
        reading = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, reading)
        above = open_files.highest(_ABOVE_ALL_OTHERS + 1)
        return fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, above)
    return None


def become_idle_init(program: int | None, ready: int) -> NoReturn:
    """Report readiness on `ready`, release all descriptors and sleep, if possible as `program`."""
    os.dup2(ready, _READY)
    if program is not None:
        os.closerange(_READY + 1, program)
        with suppress(OSError):
            os.execve(program, ["init"], {})  # noqa: S606 - a program of our own
    os.write(_READY, b"1")
    os.closerange(_READY, open_files.MOST_OPEN)
    while True:
        signal.pause()


def program_for(machine: Machine) -> bytes:
    """Return the ELF file: one readable and executable segment, and a non-executable stack."""
    code = _WORD + _instructions(machine)
    size = _HEADERS + len(code)
    start = _ADDRESS + _HEADERS + len(_WORD)
    header = struct.pack(
        "<4s5B7xHHIQQQI6H",
        *(b"\x7fELF", 2, 1, _CURRENT, 0, 0),
        *(_EXECUTABLE, machine.elf, _CURRENT, start, 64, 0, 0),
        *(64, 56, 2, 0, 0, 0),
    )
    piece = (_LOADED, _READ_AND_RUN, 0, _ADDRESS, _ADDRESS, size, size, 4096)
    stack = (_STACK, _READ_AND_WRITE, 0, 0, 0, 0, 0, 16)
    return header + b"".join(struct.pack("<2I6Q", *each) for each in (piece, stack)) + code


def _instructions(machine: Machine) -> bytes:
    number = syscalls.table(machine.name)
    become_idle_init = machine.call(number["ppoll"], 0, 0, 0, 0)
    return b"".join(
        (
            machine.call(number["prctl"], _PR_SET_DUMPABLE, 0, 0, 0),
            machine.call(number["write"], _READY, _ADDRESS + _HEADERS, 1),
            machine.call(number["close"], _READY),
            become_idle_init,
            machine.jump(len(become_idle_init)),
        )
    )


def _call_x86_64(number: int, *arguments: int) -> bytes:
    # mov eax|edi|esi|edx|r10d, value; then syscall
    moves = (b"\xb8", b"\xbf", b"\xbe", b"\xba", b"\x41\xba")
    values = zip(moves, (number, *arguments), strict=False)
    return b"".join(move + struct.pack("<I", value) for move, value in values) + b"\x0f\x05"


def _jump_x86_64(back: int) -> bytes:
    return b"\xeb" + struct.pack("<b", -back - 2)


def _call_aarch64(number: int, *arguments: int) -> bytes:
    # movz and movk, the two halves of each value; then svc 0
    words: list[int] = []
    for register, value in ((8, number), *enumerate(arguments)):
        words.append(0xD2800000 | (value & 0xFFFF) << 5 | register)
        words.append(0xF2A00000 | (value >> 16) << 5 | register)
    return struct.pack(f"<{len(words) + 1}I", *words, 0xD4000001)


def _jump_aarch64(back: int) -> bytes:
    return struct.pack("<I", 0x14000000 | (-back // 4 & 0x3FFFFFF))


MACHINES: Final[Mapping[str, Machine]] = MappingProxyType(
    {
        machine.name: machine
        for machine in (
            Machine(name="x86_64", elf=62, call=_call_x86_64, jump=_jump_x86_64),
            Machine(name="aarch64", elf=183, call=_call_aarch64, jump=_jump_aarch64),
        )
    }
)

_SETUP_FAILED: Final = 125
NAMESPACES: Final = (
    ("net", libc.CLONE_NEWNET),  # first: the zygote created it and owns it
    ("user", libc.CLONE_NEWUSER),  # gives the right to join the others, which it owns
    ("mnt", libc.CLONE_NEWNS),
    ("ipc", libc.CLONE_NEWIPC),
    ("uts", libc.CLONE_NEWUTS),
    ("cgroup", libc.CLONE_NEWCGROUP),
)
"""The namespaces that a worker joins itself; it starts in the pid namespace."""


def lead(
    slot: str, descriptors: Descriptors, cgroups: Sequence[int], confinement: Confinement
) -> NoReturn:
    """Run one execution in the namespaces that this process was cloned into. Never returns."""
    try:
        libc.die_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _join(cgroups)
        _settle(slot, confinement)
        line = landlock_chmod.open_line() if confinement.readable else None
        child = os.fork()
        if child == 0:
            if confinement.contained:
                become(INNER_ID)
                lock(confinement)
            worker.serve(descriptors, replace(confinement, line=line))
        if confinement.contained:
            lock(confinement)
        if line is not None:
            landlock_chmod.start(line)
        for descriptor in (
            descriptors.go,
            descriptors.stdin,
            descriptors.stdout,
            descriptors.stderr,
        ):
            os.close(descriptor)
        os.write(descriptors.status, _await(child, confinement))
        if confinement.readable:
            _end_descendants()
    except BaseException as error:  # noqa: BLE001 - no code may run on past this process
        os.write(descriptors.status, json.dumps({"setup_failed": repr(error)}).encode() + b"\n")
        os._exit(_SETUP_FAILED)
    os._exit(0)


def _settle(slot: str, confinement: Confinement) -> None:
    """Build the jail around this process, out of the program's reach."""
    if confinement.readable:
        _answer_for_orphans()
    elif confinement.contained:
        libc.set_hostname(HOSTNAME)
        with suppress(OSError):  # gVisor has it up already
            loopback.bring_up()
    else:
        libc.map_own_ids(INNER_ID, INNER_ID, INNER_ID)
        jail_mounts.bound_inotify()
        jail_mounts.enter_execution_root(slot, confinement.layer)
    libc.set_dumpable(dumpable=False)
    if not confinement.contained:
        # Before the worker exists, because it inherits every lock. In the contained tier, the
        # worker must change its uid first.
        lock(confinement)


def prepare_jail(
    slot: str,
    cgroups: Sequence[int],
    confinement: Confinement,
    *,
    gate: int,
    ready: int,
    status: int,
    idle_init: int | None = None,
) -> NoReturn:
    """Build a jail for a worker of another zygote, and keep it until it is killed.

    `gate` becomes readable after our namespaces have been opened. `ready` tells the worker that it
    can enter. `idle_init` is the program that this process becomes, see `open_program`.
    """
    try:
        libc.die_with_parent(signal.SIGKILL)
        _join(cgroups)
        libc.map_own_ids(INNER_ID, INNER_ID, INNER_ID)
        jail_mounts.bound_inotify()
        jail_mounts.enter_execution_root(slot, confinement.layer)
        # Not earlier: the process that opens our namespaces must be able to read our `/proc` entry.
        os.read(gate, 1)
        libc.set_dumpable(dumpable=False)
        lock(confinement)
    except BaseException as error:  # noqa: BLE001 - no code may run on past this process
        os.write(status, json.dumps({"setup_failed": repr(error)}).encode() + b"\n")
        os._exit(_SETUP_FAILED)
    # Dead children are reaped automatically: as in the zygote, SIGCHLD is ignored.
    become_idle_init(idle_init, ready)


def move_in(
    ready: int, namespaces: Sequence[int], cgroups: Sequence[int], confinement: Confinement
) -> None:
    """Move a worker that was forked into a jail's pid namespace into the rest of the jail."""
    _join(cgroups)
    if os.read(ready, 1) != b"1":
        raise ConnectionAbortedError("the jail is gone")
    for descriptor, (_, kind) in zip(namespaces, NAMESPACES, strict=True):
        libc.join_namespace(descriptor, kind)
    os.chdir("/")
    lock(confinement)


def lock(confinement: Confinement) -> None:
    libc.forbid_new_privileges()
    libc.drop_capabilities()
    confinement.filter.load()


def _join(cgroups: Sequence[int]) -> None:
    for descriptor in cgroups:
        # Writing "0" moves only the caller and avoids a kernel-wide lock that moving a pid takes.
        os.write(descriptor, b"0")
        os.close(descriptor)


def _answer_for_orphans() -> None:
    """Adopt orphans and kill them here, because without a pid namespace the kernel does not."""
    libc.adopt_orphans()
    signal.signal(signal.SIGTERM, _end_all)


def _end_all(number: int, frame: object) -> NoReturn:
    del number, frame
    _end_descendants()
    os._exit(0)


def _end_descendants() -> None:
    """Stop the whole tree first, so that no process forks while the others are killed."""
    try:
        while True:
            _end_groups()
            for sent in (signal.SIGSTOP, signal.SIGKILL):
                for pid in descendants_of(os.getpid()):
                    with suppress(ProcessLookupError):
                        os.kill(pid, sent)
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
    except ChildProcessError:
        return


def _end_groups() -> None:
    """Kill by process group: a fork bomb must not get the time that finding each process takes."""
    for pid in children_of(os.getpid()):
        with suppress(ProcessLookupError):
            group = os.getpgid(pid)
            if group != os.getpgrp():
                os.killpg(group, signal.SIGKILL)


def _await(child: int, confinement: Confinement) -> bytes:
    """Reap until the worker is dead; report its status and whether it was alone."""
    if confinement.ahead:
        # Copies the pages shared with the zygote now, because they are written to at the end.
        _describe(0, confinement, alone=False)
    while True:
        pid, ended = os.wait()
        if pid == child:
            return _describe(ended, confinement, alone=_reap_the_dead())


def _describe(ended: int, confinement: Confinement, *, alone: bool) -> bytes:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return describe_end(ended, used, confinement.inherited_kb, alone=alone)


def describe_end(
    ended: int, used: resource.struct_rusage, inherited_kb: int, *, alone: bool | None = None
) -> bytes:
    """Encode how a worker ended as one line of JSON; `alone` only if that is known."""
    grown_kb = max(0, used.ru_maxrss - inherited_kb)
    cpu_s = used.ru_utime + used.ru_stime
    company = "" if alone is None else f', "alone": {"true" if alone else "false"}'
    # Written by hand: the pages of the JSON encoder would be copied for every execution.
    line = f'{{"ended": {ended}, "cpu_s": {cpu_s:.6f}, "grown_kb": {grown_kb}{company}}}\n'
    return line.encode()


def _reap_the_dead() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return True
    return False
