"""The parent of all executions: unprivileged, jailed, with the libraries already imported.

It holds no secret and reads no file of the host. It only imports libraries and then creates
processes on order (`spawner.py`).
"""

import gc
import importlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NoReturn

from assay.sandbox.native.guest import jail_mounts, streams, worker
from assay.sandbox.native.guest import mounts as steward
from assay.sandbox.native.guest.jail_plan import INNER_ID, JailPlan, plan_from_json
from assay.sandbox.native.guest.landlock_chmod import build_mediating_filter
from assay.sandbox.native.guest.perf import large_pages, rehearsal
from assay.sandbox.native.guest.spawner import Spawner
from assay.sandbox.native.guest.worker import Confinement
from assay.sandbox.native.kernel import libc
from assay.sandbox.native.kernel.seccomp import PreparedFilter

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
    plan_descriptor, mounts, *orders = map(int, descriptors)
    plan = plan_from_json(_read_all(plan_descriptor))
    os.close(plan_descriptor)
    boxes = _take_places(plan)
    if os.fork() == 0:
        _close(orders)
        steward.main(mounts, boxes)
    os.close(mounts)
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
        with large_pages.contiguous_heap():
            _preload(stage)
    _close([channel for channel in orders if channel != own])
    _serve(socket.socket(fileno=own), confinement, bare=own == orders[0])


def _forget_ignored_signals() -> None:
    """Reset signals that a shell ignores for background jobs: programs must not inherit that."""
    for number in signal.valid_signals():
        if number not in _PYTHON_IGNORES and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _take_places(plan: JailPlan) -> steward.Workspaces:
    if plan.tier == "landlock":
        return steward.PlainBoxes(plan.scratch)
    if plan.tier == "contained":
        return steward.TheOnlyBox()
    uid, gid = os.getuid(), os.getgid()
    # Executing this program dropped the right to mount; a separate namespace restores it.
    libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
    libc.map_own_ids(INNER_ID, uid, gid)
    jail_mounts.open_places()
    jail_mounts.share_inotify()
    return steward.MountedBoxes()


def _serve(channel: socket.socket, confinement: Confinement, *, bare: bool) -> NoReturn:
    # For PID 1 of each execution: the kernel shields it only from signals without a handler.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pin_inherited_limits()
    streams.open_streams()
    worker.warm_up()
    gc.collect()
    gc.freeze()
    large_pages.gather()
    with suppress(OSError):
        if confinement.contained:
            pass  # gVisor does not show which pages were copied, so a rehearsal finds nothing
        elif bare and not confinement.readable:
            rehearsal.rehearse_cell(confinement)
        else:
            rehearsal.rehearse_work(confinement)
    nursery = Spawner(channel, replace(confinement, inherited_kb=_inheritance_kb()))
    channel.send(b'{"ready": true}')
    while True:
        nursery.serve_one()


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
    _import_all(modules)
    for name in hidden:
        del sys.modules[name]


def _import_all(modules: Sequence[str]) -> None:
    for name in modules:
        before = set(sys.modules)
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a broken library must not break the sandbox
            print(f"cannot preload {name}: {error!r}", file=sys.stderr)  # noqa: T201
            # A partly imported library would break a program that imports it itself.
            for loaded in set(sys.modules) - before:
                del sys.modules[loaded]


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
