"""The first process of each execution: builds the jail, starts the worker, reports how it ended.

The program cannot reach it: it is not dumpable and the first in its pid namespace. It also reports
the exit status of a worker that it forked itself, because the program cannot write to the status
pipe. When PID 1 exits, the kernel kills all remaining processes of the program.
"""

import json
import os
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from assay.sandbox.native.guest import idle_init, jail_mounts, landlock_chmod, loopback, worker
from assay.sandbox.native.guest.descendants import children_of, descendants_of
from assay.sandbox.native.guest.ids import become
from assay.sandbox.native.guest.jail_plan import HOSTNAME, INNER_ID
from assay.sandbox.native.guest.worker import Confinement, Descriptors
from assay.sandbox.native.kernel import libc

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJail:
    """The descriptors of a jail without a worker."""

    gate: int
    """Readable after our namespaces have been opened."""
    ready: int
    """Tells the worker that it can enter."""
    status: int
    sleeper: int | None = None
    """The program that PID 1 becomes; see `idle_init.py`."""


def prepare_jail(
    slot: str, vacancy: PendingJail, cgroups: Sequence[int], confinement: Confinement
) -> NoReturn:
    """Build a jail for a worker of another zygote, and keep it until it is killed."""
    try:
        libc.die_with_parent(signal.SIGKILL)
        _join(cgroups)
        libc.map_own_ids(INNER_ID, INNER_ID, INNER_ID)
        jail_mounts.bound_inotify()
        jail_mounts.enter_execution_root(slot, confinement.layer)
        # Not earlier: the process that opens our namespaces must be able to read our `/proc` entry.
        os.read(vacancy.gate, 1)
        libc.set_dumpable(dumpable=False)
        lock(confinement)
    except BaseException as error:  # noqa: BLE001 - no code may run on past this process
        os.write(vacancy.status, json.dumps({"setup_failed": repr(error)}).encode() + b"\n")
        os._exit(_SETUP_FAILED)
    # Dead children are reaped automatically: as in the zygote, SIGCHLD is ignored.
    idle_init.sleep(vacancy.sleeper, vacancy.ready)


def move_in(
    ready: int, namespaces: Sequence[int], cgroups: Sequence[int], confinement: Confinement
) -> None:
    """Move a worker that was forked into a jail's pid namespace into the rest of the jail."""
    _join(cgroups)
    if os.read(ready, 1) != b"1":
        raise ConnectionAbortedError("the cell is gone")
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
