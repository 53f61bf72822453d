"""The trusted parent of a zygote: starts it, jails it, and cleans up after it.

The launcher starts with an empty environment and only the descriptors that it passes on. As soon as
the supervisor is gone, it kills the zygote and with it every execution.
"""

import json
import os
import select
import signal
from collections.abc import Sequence
from typing import Final, NoReturn

from assay.sandbox.native.guest import jail_mounts
from assay.sandbox.native.guest.jail_spec import (
    INNER_ID,
    JailSpec,
    become,
    clone_with_root,
    spec_from_json,
)
from assay.sandbox.native.guest.layer_mounter import LayerMounter
from assay.sandbox.native.kernel import libc
from assay.sandbox.native.kernel.open_files import raise_limit
from assay.sandbox.native.kernel.rmtree import remove_tree

_TRIES: Final = 50
_PAUSE_MS: Final = 20
_GIVES_WAY: Final = 5
"""The niceness of programs, so that the supervisor and other work on the machine have priority."""


def main(*descriptors: str) -> NoReturn:
    """Entry point; `spawn.py` passes the numbers of the descriptors."""
    life, requests, *handed_on = map(int, descriptors)
    plan_descriptor, _, orders, *_ = handed_on
    os.umask(0o022)
    raise_limit()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    plan = spec_from_json(_read_file(plan_descriptor))
    uid, gid = os.getuid(), os.getgid()
    try:
        pid, pidfd, identity = _clone_zygote(plan)
    except OSError as error:
        remove_all(plan.remove)
        _give_up(orders, error)
    if pid == 0:
        os.close(life)
        os.close(requests)
        _become_zygote(plan, handed_on, (uid, gid), identity)
    for descriptor in handed_on:
        os.close(descriptor)
    if pidfd < 0:
        # All processes end with the container, so the launcher need not watch the zygote.
        os.read(life, 1)
        os.kill(pid, signal.SIGKILL)
    else:
        _serve_until_the_end(life, pidfd, LayerMounter(requests, plan.drop_to_id))
    os.waitpid(pid, 0)
    remove_all(plan.remove)
    os._exit(0)


def _clone_zygote(plan: JailSpec) -> tuple[int, int, int | None]:
    """Clone into namespaces; the last item is the uid to become, as seen in the child."""
    if plan.tier == "contained":
        return os.fork(), -1, None
    try:
        return (*libc.clone_process(_namespaces(plan)), plan.drop_to_id)
    except PermissionError:
        if plan.drop_to_id is None or plan.tier == "landlock":
            raise
    return (*clone_with_root(plan.drop_to_id, libc.clone_apart), INNER_ID)


def _namespaces(plan: JailSpec) -> int:
    if plan.tier == "landlock":
        return 0
    return libc.ALL_NAMESPACES if plan.drop_to_id is None else libc.ALL_BUT_USER


def _read_file(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _give_up(orders: int, error: BaseException) -> NoReturn:
    """Report to the supervisor, in place of the zygote, why there is no zygote."""
    os.write(orders, json.dumps({"error": str(error)}).encode())
    os._exit(1)


def _become_zygote(
    plan: JailSpec, descriptors: Sequence[int], outer: tuple[int, int], identity: int | None
) -> NoReturn:
    try:
        libc.die_with_parent(signal.SIGKILL)
        os.nice(_GIVES_WAY)
        if plan.tier == "namespaces":
            if plan.drop_to_id is None:
                libc.map_own_ids(INNER_ID, *outer)
            jail_mounts.build_zygote_root(plan.root, plan.layers)
        if identity is not None:
            become(identity)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # A change of uid clears this setting, but the kernel must still kill the zygote with the
        # launcher.
        libc.die_with_parent(signal.SIGKILL)
        arguments = [str(descriptor) for descriptor in descriptors]
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
        os.execve(plan.argv[0], [*plan.argv, *arguments], dict(plan.env))  # noqa: S606
    except BaseException as error:  # noqa: BLE001 - the child of a fork must not return
        _give_up(descriptors[2], error)


def _serve_until_the_end(life: int, pidfd: int, layers: LayerMounter) -> None:
    """Return when the zygote is dead; kill it when the supervisor's end of `life` closes."""
    watched = select.poll()
    for descriptor in (life, pidfd, layers.requests):
        watched.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in watched.poll()}
        if pidfd in ready:
            return
        if life in ready:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return
        if not layers.serve_one():
            watched.unregister(layers.requests)


def remove_all(paths: Sequence[str]) -> None:
    """Remove cgroup folders and directories, if they exist."""
    for path in paths:
        if path.startswith("/sys/"):
            _remove_cgroup(path)
        else:
            remove_tree(path)


def _remove_cgroup(path: str) -> None:
    """Retry, because a group of processes that have just died may stay busy for a moment."""
    for folder, _, _ in os.walk(path, topdown=False):
        for _ in range(_TRIES):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                break
            except OSError:
                select.poll().poll(_PAUSE_MS)
            else:
                break
