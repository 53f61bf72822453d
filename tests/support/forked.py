"""Runs something that cannot be undone in a child, and tells what became of it."""

import ctypes
import errno
import os
from collections.abc import Callable

PR_SET_NO_NEW_PRIVS = 38


def outcome_of(action: Callable[[], object], *, uid: int | None = None) -> str:
    """What an action gave in a child without new privileges.

    That is the `repr` of its value, the name of the errno it met, or `signal N` if that killed it.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _report(action, writer, uid)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as report:
        text = report.read()
    _, status = os.waitpid(child, 0)
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else text


def _report(action: Callable[[], object], writer: int, uid: int | None) -> None:
    text = "an exception that is no OSError"
    try:
        _step_down(uid)
        text = repr(action())
    except OSError as error:
        text = errno.errorcode[error.errno or 0]
    finally:
        os.write(writer, text.encode())
        os._exit(0)


def _step_down(uid: int | None) -> None:
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    ctypes.PyDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
