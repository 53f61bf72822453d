"""The process of one probe: its identity, its namespaces, and the format of its result.

The process ends after the probe, because a filter, a namespace or a lost privilege cannot be
undone. It imports the standard library and the sandbox's own system calls only.
"""

import errno
import json
import os
import select
import signal
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from assay.sandbox.native.guest.jail_plan import INNER_ID
from assay.sandbox.native.kernel import libc

PROBE_ID: Final = 1_600_065_535
"""The uid to become if started as root; it is in the range that sandboxes use."""

_CHILD_WITHIN_MS: Final = 3000


class Seen(NamedTuple):
    """The observation of a successful act."""

    detail: str
    version: int = 0
    """The version of the interface that was used, if there are several."""


Act = Callable[[], Seen]
"""May raise OSError, NoEffectError or AbsentError; any other exception is a bug."""

Clone = Callable[[int], tuple[int, int]]
"""Takes namespace flags and returns pid and pidfd; returns in both processes, like fork."""


class NoEffectError(Exception):
    """The system call succeeded, but nothing changed."""


class AbsentError(Exception):
    """The feature does not exist here, or is insufficient."""


def outcome_of(act: Act) -> dict[str, Any]:
    try:
        return {"kind": "done", **act()._asdict()}
    except OSError as error:
        return {"kind": "refused", "detail": _message(error), "errno": error.errno or 0}
    except NoEffectError as error:
        return {"kind": "no_effect", "detail": str(error)}
    except AbsentError as error:
        return {"kind": "absent", "detail": str(error)}


def _message(error: OSError) -> str:
    # The wrappers of `libc.py` name the call; the standard library names the file.
    said = error.strerror or str(error)
    return f"{error.filename}: {said}" if error.filename else said


def become_ordinary() -> None:
    """Take the identity of the sandbox's processes. A root that cannot do so stays root."""
    if os.geteuid() == 0:
        try:
            step_down()
        except OSError:
            return
        # Otherwise our own /proc entries, including uid_map, belong to root.
        libc.set_dumpable(dumpable=True)
        libc.die_with_parent(signal.SIGKILL)


def step_down(identity: int = PROBE_ID) -> None:
    os.setgroups([])
    os.setresgid(identity, identity, identity)
    os.setresuid(identity, identity, identity)


def in_namespaces(flags: int, act: Act, *, mapped: bool = True) -> Seen:
    """Run an act in a process that is cloned like the zygote, in a separate user namespace."""
    become_ordinary()
    return cloned(libc.CLONE_NEWUSER | flags, act, mapped=mapped)


def cloned(flags: int, act: Act, *, mapped: bool, clone: Clone = libc.clone_process) -> Seen:
    uid, gid = os.geteuid(), os.getegid()
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid, pidfd = clone(flags)
    if pid == 0:
        libc.die_with_parent(signal.SIGKILL)

        def mapped_act() -> Seen:
            if mapped:
                libc.map_own_ids(INNER_ID, uid, gid)
            return act()

        os.write(writing, json.dumps(outcome_of(mapped_act)).encode())
        os._exit(0)
    os.close(writing)
    await_child(pid, pidfd)
    with os.fdopen(reading, "rb") as answer:
        return _passed_on(json.loads(answer.read() or b"{}"))


def _passed_on(outcome: dict[str, Any]) -> Seen:
    match outcome.get("kind"):
        case "done":
            return Seen(outcome["detail"], outcome["version"])
        case "refused":
            raise OSError(outcome["errno"], outcome["detail"])
        case _:
            raise NoEffectError(outcome.get("detail", "the new process died without a word"))


def await_child(pid: int, pidfd: int) -> int:
    """Wait for a child and return its status; kill it after a timeout."""
    watched = select.poll()
    watched.register(pidfd, select.POLLIN)
    if not watched.poll(_CHILD_WITHIN_MS):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    return os.waitpid(pid, 0)[1]


def expect(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - reads like the assertion it is
    if not holds:
        raise NoEffectError(otherwise)


def refusal_of(action: Callable[[], object]) -> int:
    """Return the errno with which an action fails; 0 if it succeeds."""
    try:
        action()
    except OSError as error:
        return error.errno or errno.EIO
    return 0
