"""Detects that a program has ended while the kernel still frees its memory.

A waiting parent learns about an exit only after the process is gone. Freeing the memory of an
interpreter with its libraries takes longer than most programs run. But a process that has begun to
exit executes no more code of its own, and its exit code is final. The worker closes its stderr just
before it exits. That is only a hint, because a program could do the same: the process state in the
kernel decides.
"""

import os
from typing import Final

_EXITING: Final = 0x4
"""PF_EXITING, among the flags of a process."""
# Indexes of the fields after the name in `/proc/PID/stat`.
_FLAGS, _THREADS, _SIZE, _STACK, _EXIT_CODE = 6, 17, 20, 25, 49


def may_be_seen(pid: int) -> bool:
    """Whether the kernel shows this process the exit code of another, live one.

    Where it does not, it shows 0, as for a success. That depends on the owner of the process, and
    on whether a live process is dumpable. So this is checked before the program starts.
    """
    fields = _stat(pid)
    return bool(fields) and int(fields[_STACK]) != 0


def wait_status(pid: int) -> int | None:
    """Return the wait status of a process that has begun to exit, as `waitpid` would; else None.

    That is so once it has released its memory: no code can run in it, and nothing hides it.
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
    except (FileNotFoundError, ProcessLookupError):  # gone, or exiting at this moment
        return []
    try:
        return os.read(descriptor, 4096).rpartition(b")")[2].split()
    except ProcessLookupError:
        return []
    finally:
        os.close(descriptor)
