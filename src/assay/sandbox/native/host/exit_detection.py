"""Sees that a program is over while the kernel still takes its memory apart.

Whoever waits for a process is told of its end when all of it is gone, and giving back the memory of
an interpreter with its libraries takes longer than most programs run. But a process that has begun
to leave never runs another instruction of its own, and its exit code is settled by then. The worker
closes its stderr just before it leaves. That is only a hint, which a program could give as well:
what counts is what the kernel says of the process.
"""

import os
from typing import Final

_EXITING: Final = 0x4
"""PF_EXITING, among the flags of a process."""
# Places in what follows the name in `/proc/PID/stat`.
_FLAGS, _THREADS, _SIZE, _STACK, _EXIT_CODE = 6, 17, 20, 25, 49


def may_be_seen(pid: int) -> bool:
    """Whether the kernel would tell us the exit code of this process, which is still whole.

    Where it would not, it says 0, as of one that did well. It depends on whose process it is, and
    while it is whole also on whether it hides, which is why that is asked before it could.
    """
    fields = _stat(pid)
    return bool(fields) and int(fields[_STACK]) != 0


def wait_status(pid: int) -> int | None:
    """Return how a process ends that has begun to, as `waitpid` would; None if it has not.

    It has once its memory is no longer its own: then nobody can run in it, and hiding is over.
    """
    fields = _stat(pid)
    if not fields or not int(fields[_FLAGS]) & _EXITING:
        return None
    if int(fields[_SIZE]) != 0 or int(fields[_THREADS]) != 1:
        return None
    return int(fields[_EXIT_CODE])


def _stat(pid: int) -> list[bytes]:
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):  # gone, or going at this very moment
        return []
    try:
        return os.read(descriptor, 4096).rpartition(b")")[2].split()
    except ProcessLookupError:
        return []
    finally:
        os.close(descriptor)
