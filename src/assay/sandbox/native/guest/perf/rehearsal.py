"""Runs one trial process before a zygote serves, to find the pages that every process writes to."""

import json
import os
import signal
from contextlib import suppress
from typing import Final, NoReturn

from assay.sandbox.native.guest import jail_mounts, pid1, worker
from assay.sandbox.native.guest.perf.hot_pages import Footprints
from assay.sandbox.native.guest.pid1 import PendingJail
from assay.sandbox.native.guest.worker import Confinement, Descriptors
from assay.sandbox.native.kernel import libc

_SLOT: Final = f"{jail_mounts.SLOTS}/rehearsal"
_HEADER: Final[dict[str, object]] = {
    "kind": "python",
    "filename": "rehearsal.py",
    "args": ["a"],
    "cwd": "",
    "workspace": "",
    "writable": [],
    "readable": [],
    "packages": "",
    "env": {"A": "a"},
    "rlimits": {"RLIMIT_CORE": 0},
}
_PROGRAM: Final = b"import sys\nprint(flush=True)\nsys.stdin.read()\n"


def rehearse_cell(confinement: Confinement) -> None:
    """Let a PID 1 build a jail; for the zygote that forks PID 1 of all jails.

    Raises:
        OSError: If that fails, which affects only speed.
    """
    waits, opens = os.pipe()
    hears, tells = os.pipe()
    nowhere = os.open("/dev/null", os.O_WRONLY)
    pid, pidfd = libc.clone_process(libc.ALL_NAMESPACES)
    if pid == 0:
        vacancy = PendingJail(gate=waits, ready=tells, status=nowhere)
        pid1.prepare_jail(_SLOT, vacancy, (), confinement)
    _close(waits, tells, nowhere, pidfd)
    try:
        _learn(pid, opens, hears)
    finally:
        _end(pid)
        _close(hears)
        for folder in (*(f"{_SLOT}/{name}" for name in jail_mounts.BOX_FOLDERS), _SLOT):
            with suppress(FileNotFoundError):
                os.rmdir(folder)


def rehearse_work(confinement: Confinement) -> None:
    """Let a worker run a program, as far as that works without a jail; for all other zygotes.

    Raises:
        OSError: If that fails, which affects only speed.
    """
    takes, gives = os.pipe()
    hears, tells = os.pipe()
    stays, opens = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(opens)
        os.close(gives)
        _work(takes, stays, tells, confinement)
    _close(takes, stays, tells)
    try:
        os.write(gives, json.dumps(_HEADER).encode() + b"\n" + _PROGRAM)
        _learn(pid, gives, hears)
    finally:
        _end(pid)
        _close(hears, opens)


def _work(program: int, stdin: int, stdout: int, confinement: Confinement) -> NoReturn:
    nowhere = os.open("/dev/null", os.O_WRONLY)
    streams = Descriptors(go=program, stdin=stdin, stdout=stdout, stderr=nowhere, status=nowhere)
    try:
        pid1.lock(confinement)
        worker.serve(streams, confinement)
    finally:
        os._exit(1)


def _learn(pid: int, opens: int, hears: int) -> None:
    """Inspect a process when it has done its work and waits."""
    footprints = Footprints(pid)
    try:
        os.write(opens, b"\n")
        os.close(opens)
        if os.read(hears, 1):
            footprints.keep_ready()
    finally:
        footprints.close()


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
