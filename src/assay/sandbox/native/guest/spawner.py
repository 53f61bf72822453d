"""Creates the processes of executions on the supervisor's orders; runs inside a zygote.

There are three kinds of order. `lead`: a whole jail with PID 1 and worker. `vacate`: a jail whose
PID 1 waits for a worker of another zygote. `join`: a worker for such a jail. The last two belong
together: the largest cost of an execution is the fork of a zygote with many imports. So PID 1 comes
from the bare zygote, and only the worker from the zygote with the libraries.
"""

import array
import json
import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from assay.sandbox.native.guest import idle_init, jail_mounts, loopback, pid1, worker
from assay.sandbox.native.guest.ids import clone_with_root
from assay.sandbox.native.guest.pid1 import NAMESPACES, PendingJail
from assay.sandbox.native.guest.worker import Confinement, Descriptors
from assay.sandbox.native.kernel import libc

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
        self._sleeper = idle_init.open_program() if self._jailed else None
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
            vacancy = PendingJail(gate=gate, ready=ready, status=status, sleeper=self._sleeper)
            confinement = self._confinement_for(order)
            pid1.prepare_jail(f"{jail_mounts.SLOTS}/{order['slot']}", vacancy, cgroups, confinement)
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


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
