"""The parent of all executions: unprivileged, jailed, with the libraries already imported.

It holds no secret and reads no file of the host. It only imports libraries and then creates
processes on the supervisor's orders. `lead`: a whole jail with PID 1 and worker. `vacate`: a jail
whose PID 1 waits for a worker of another zygote. `join`: a worker for such a jail.
"""

import array
import gc
import importlib
import io
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NoReturn

from assay.sandbox.native.guest import jail_mounts, loopback, mounts, perf, pid1, worker
from assay.sandbox.native.guest.jail_spec import INNER_ID, JailSpec, clone_with_root, spec_from_json
from assay.sandbox.native.guest.landlock_chmod import build_mediating_filter
from assay.sandbox.native.guest.pid1 import NAMESPACES
from assay.sandbox.native.guest.worker import Confinement, Descriptors
from assay.sandbox.native.kernel import libc
from assay.sandbox.native.kernel.seccomp import PreparedFilter

_STREAMS: Final = 5
_LARGEST_ORDER: Final = 4096
_DESCRIPTOR_SPACE: Final = socket.CMSG_LEN(32 * array.array("i").itemsize)
_SETUP_FAILED: Final = 125


class Spawner:
    """Executes orders one after another, and reports how workers of other zygotes' jails ended."""

    def __init__(self, channel: socket.socket, confinement: Confinement) -> None:
        self._channel = channel
        self._confinement = confinement
        self._jailed = not confinement.readable
        self._workers: dict[int, tuple[int, int]] = {}
        """By pidfd: pid and status pipe."""
        self._events = select.poll()
        self._events.register(channel, select.POLLIN)
        self._spare_network = False
        self._idle_init = pid1.open_program() if self._jailed else None
        self._newest = 0
        """The pid of the latest PID 1, for a supervisor that has no pidfd of it."""
        # No parent waits for these processes, so they are reaped automatically; see `_join`.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def serve_one(self) -> None:
        for descriptor, _ in self._events.poll():
            if descriptor in self._workers:
                self._report(descriptor)
            else:
                self._obey()

    def _obey(self) -> None:
        message, notes, _, _ = self._channel.recvmsg(_LARGEST_ORDER, _DESCRIPTOR_SPACE)
        if not message:
            os._exit(0)
        received = array.array("i")
        for _, _, data in notes:
            received.frombytes(data)
        order: dict[str, Any] = json.loads(message)
        make = {"lead": self._lead, "vacate": self._vacate, "join": self._join}[order["do"]]
        try:
            handed_out = make(order, list(received))
        except OSError as error:
            self._channel.send(json.dumps({"error": str(error)}).encode())
            return
        finally:
            _close(received)
            if "ports" in order:
                # After success or failure, no other execution may get this network.
                _renew_network()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handed_out))]
        self._channel.sendmsg([f'{{"pid": {self._newest}}}'.encode()], rights)
        _close(handed_out)
        if self._spare_network and "ports" not in order:
            # A new network for the next jail, created while no execution waits.
            _renew_network()

    def _clone(self) -> tuple[int, int]:
        if self._confinement.contained:
            return clone_with_root(self._confinement.worker_id, libc.clone_without_mounts)
        if not self._jailed:
            return libc.clone_process(0)
        if not self._spare_network:
            _renew_network()
            self._spare_network = True
        return libc.clone_process(libc.ALL_NAMESPACES & ~libc.CLONE_NEWNET)

    def _open_network(self, order: dict[str, Any]) -> list[int]:
        """Make the next jail's network lead to the supervisor, if the order has ports."""
        if "ports" not in order:
            return []
        libc.unshare(libc.CLONE_NEWNET)
        self._spare_network = True
        return loopback.open_network(order["ports"])

    def _confinement_for(self, order: dict[str, Any]) -> Confinement:
        layer, ahead = order.get("layer", ""), order.get("ahead", False)
        return replace(self._confinement, layer=layer, ahead=ahead)

    def _lead(self, order: dict[str, Any], received: list[int]) -> list[int]:
        listeners = self._open_network(order)
        pid, pidfd = self._clone()
        if pid == 0:
            self._channel.close()
            _close(listeners)
            slot = f"{jail_mounts.SLOTS}/{order['slot']}"
            confinement = self._confinement_for(order)
            pid1.lead(slot, _streams(received), received[_STREAMS:], confinement)
        self._newest = pid
        return [pidfd, *listeners]

    def _vacate(self, order: dict[str, Any], received: list[int]) -> list[int]:
        gate, opener = os.pipe()
        status, ready, *cgroups = received
        listeners = self._open_network(order)
        pid, pidfd = self._clone()
        if pid == 0:
            self._channel.close()
            _close((opener, *listeners))
            pid1.prepare_jail(
                f"{jail_mounts.SLOTS}/{order['slot']}",
                cgroups,
                self._confinement_for(order),
                gate=gate,
                ready=ready,
                status=status,
                idle_init=self._idle_init,
            )
        names = ("pid", *(name for name, _ in NAMESPACES))
        try:
            held = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
            os.write(opener, b"1")
        finally:
            _close((gate, opener))
        return [pidfd, *held, *listeners]

    def _join(self, order: dict[str, Any], received: list[int]) -> list[int]:
        streams = _streams(received)
        ready, pid_namespace, *others = received[_STREAMS:]
        namespaces, cgroups = others[: len(NAMESPACES)], others[len(NAMESPACES) :]
        # This process reports its end, because PID 1 of the jail is not its parent.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        libc.join_namespace(pid_namespace, libc.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            confinement = self._confinement_for(order)
            try:
                pid1.move_in(ready, namespaces, cgroups, confinement)
            except BaseException as error:  # noqa: BLE001 - the child of a fork must not return
                os.write(streams.status, json.dumps({"setup_failed": repr(error)}).encode() + b"\n")
                os._exit(_SETUP_FAILED)
            worker.serve(streams, confinement)
        pidfd = os.pidfd_open(pid)
        self._workers[pidfd] = (pid, os.dup(streams.status))
        self._events.register(pidfd, select.POLLIN)
        return [os.dup(pidfd)]

    def _report(self, pidfd: int) -> None:
        pid, status = self._workers.pop(pidfd)
        self._events.unregister(pidfd)
        _, ended, used = os.wait4(pid, 0)
        # If the jail was killed, the reader is gone.
        with suppress(BrokenPipeError):
            os.write(status, pid1.describe_end(ended, used, self._confinement.inherited_kb))
        _close((pidfd, status))


def _renew_network() -> None:
    libc.unshare(libc.CLONE_NEWNET)
    with suppress(OSError):  # a kernel that refuses: programs then have no loopback
        loopback.bring_up()


def _streams(received: Sequence[int]) -> Descriptors:
    go, stdin, stdout, stderr, status = received[:_STREAMS]
    return Descriptors(go=go, stdin=stdin, stdout=stdout, stderr=stderr, status=status)


def open_streams() -> None:
    """Give the interpreter streams on descriptors 0 to 2, which may be replaced later.

    The zygote does this once: every worker inherits the streams unused.
    """
    sys.stdin = io.TextIOWrapper(
        io.BufferedReader(io.FileIO(0, "r", closefd=False)), encoding="utf-8", errors="replace"
    )
    # Line-buffered, so that printed output is available when a limit ends the program.
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "w", closefd=False)),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=True,
    )
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)),
        encoding="utf-8",
        errors="backslashreplace",
        write_through=True,
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


_HIDDEN: Final = frozenset({"pyarrow"})
"""Modules that are not imported as a dependency of others, unless a stage lists them."""
_PYTHON_IGNORES: Final = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_INHERITED_LIMITS: Final = (
    resource.RLIMIT_AS,
    resource.RLIMIT_DATA,
    resource.RLIMIT_RSS,
    resource.RLIMIT_NICE,
    resource.RLIMIT_RTPRIO,
    resource.RLIMIT_RTTIME,
)


def main(*descriptors: str) -> NoReturn:
    """Serve until the supervisor closes its end.

    The first zygote has imported nothing. Each further one is forked from the last, imports the
    modules of its stage, and serves on its own channel. A program gets the smallest sufficient
    zygote, because the cost of a fork and of an exit grows with the loaded modules.
    """
    _forget_ignored_signals()
    plan_descriptor, mounts_channel, *orders = map(int, descriptors)
    plan = spec_from_json(_read_all(plan_descriptor))
    os.close(plan_descriptor)
    workspaces = _open_workspaces(plan)
    if os.fork() == 0:
        _close(orders)
        mounts.main(mounts_channel, workspaces)
    os.close(mounts_channel)
    confinement = Confinement(
        filter=PreparedFilter(bytes.fromhex(plan.seccomp_hex)),
        asking=build_mediating_filter() if plan.tier == "landlock" else None,
        readable=tuple(path for path in plan.readable if os.access(path, os.R_OK)),
        contained=plan.tier == "contained",
        worker_id=plan.drop_to_id or 0,
    )
    own, *later = orders
    for stage, following in zip(plan.stages, later, strict=True):
        if os.fork() != 0:
            break
        libc.die_with_parent(signal.SIGKILL)
        own = following
        with perf.contiguous_heap():
            _preload(stage)
    _close([channel for channel in orders if channel != own])
    _serve(socket.socket(fileno=own), confinement, bare=own == orders[0])


def _forget_ignored_signals() -> None:
    """Reset signals that a shell ignores for background jobs: programs must not inherit that."""
    for number in signal.valid_signals():
        if number not in _PYTHON_IGNORES and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _open_workspaces(plan: JailSpec) -> mounts.OnlyWorkspace:
    if plan.tier == "landlock":
        return mounts.FolderWorkspaces(plan.scratch)
    if plan.tier == "contained":
        return mounts.OnlyWorkspace()
    uid, gid = os.getuid(), os.getgid()
    # Executing this program dropped the right to mount; a separate namespace restores it.
    libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
    libc.map_own_ids(INNER_ID, uid, gid)
    jail_mounts.open_places()
    jail_mounts.share_inotify()
    return mounts.MountedWorkspaces()


def _serve(channel: socket.socket, confinement: Confinement, *, bare: bool) -> NoReturn:
    # For PID 1 of each execution: the kernel shields it only from signals without a handler.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pin_inherited_limits()
    open_streams()
    worker.warm_up()
    gc.collect()
    gc.freeze()
    perf.gather_large_pages()
    with suppress(OSError):
        if confinement.contained:
            pass  # gVisor does not show which pages were copied, so a rehearsal finds nothing
        elif bare and not confinement.readable:
            perf.rehearse_cell(confinement)
        else:
            perf.rehearse_work(confinement)
    spawner = Spawner(channel, replace(confinement, inherited_kb=_inheritance_kb()))
    channel.send(b'{"ready": true}')
    while True:
        spawner.serve_one()


def pin_inherited_limits() -> None:
    """Lower hard limits that requests do not set to the soft ones, so that programs can raise none.

    The stack limit stays as it is. Deeply recursive programs raise it, and stack memory counts as
    memory.
    """
    for limit in _INHERITED_LIMITS:
        soft, _ = resource.getrlimit(limit)
        # gVisor has only some of them.
        with suppress(OSError, ValueError):
            resource.setrlimit(limit, (soft, soft))


def _inheritance_kb() -> int:
    """Return the anonymous memory, which a fork inherits. A child maps the rest when it uses it."""
    with open("/proc/self/statm") as pages:
        _, resident, of_files, *_ = pages.read().split()
    return (int(resident) - int(of_files)) * resource.getpagesize() // 1024


def _read_all(descriptor: int) -> bytes:
    pieces: list[bytes] = []
    while piece := os.read(descriptor, 1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def _preload(modules: Sequence[str]) -> None:
    # pandas imports pyarrow where it is installed. That starts a thread, which must not exist when
    # this process forks, and makes each fork slower. Programs import it when they need it.
    hidden = _HIDDEN - sys.modules.keys() - {name.partition(".")[0] for name in modules}
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment] # as if it were not installed
    for name in modules:
        before = set(sys.modules)
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a broken library must not break the sandbox
            print(f"cannot preload {name}: {error!r}", file=sys.stderr)  # noqa: T201
            # A partly imported library would break a program that imports it itself.
            for loaded in set(sys.modules) - before:
                del sys.modules[loaded]
    for name in hidden:
        del sys.modules[name]


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
