"""The process of one probe: whom it becomes, where it tries things, and how it tells what came.

It is thrown away afterwards: a filter, a namespace or a lost privilege cannot be undone. Standard
library and the sandbox's own system calls only.
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
"""Whom to become when started as root: an id of the range that sandboxes use."""

_CHILD_WITHIN_MS: Final = 3000


class Seen(NamedTuple):
    """What an act has shown to work."""

    detail: str
    version: int = 0
    """Of the interface that was used, where there are several."""


Act = Callable[[], Seen]
"""May raise OSError, NoEffectError or AbsentError; anything else is our own mistake."""

Clone = Callable[[int], tuple[int, int]]
"""Takes the kinds of namespaces, returns pid and pidfd; returns twice, like a fork."""


class NoEffectError(Exception):
    """The kernel said yes, and yet nothing changed."""


class AbsentError(Exception):
    """There is no such thing here, or not enough of it."""


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
    """Be who the sandbox's processes are. A root that cannot step down is a finding of its own."""
    if os.geteuid() == 0:
        try:
            step_down()
        except OSError:
            return
        # Otherwise our own /proc entries, uid_map among them, belong to root.
        libc.set_dumpable(dumpable=True)
        libc.die_with_parent(signal.SIGKILL)


def step_down(identity: int = PROBE_ID) -> None:
    os.setgroups([])
    os.setresgid(identity, identity, identity)
    os.setresuid(identity, identity, identity)


def in_namespaces(flags: int, act: Act, *, mapped: bool = True) -> Seen:
    """Do an act in a process cloned the way the zygote clones, in a user namespace of its own."""
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
    """Wait for a child and return its status; one that hangs is killed."""
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
    """The errno an action is refused with, 0 if it is not."""
    try:
        action()
    except OSError as error:
        return error.errno or errno.EIO
    return 0
