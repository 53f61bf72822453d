"""Reads the process tree as the Linux kernel lists it; signals and ranks processes."""

import os
import select
import signal
from collections.abc import Collection
from contextlib import suppress
from typing import Final

_STATE, _PARENT = 0, 1
_DEAD: Final = ("Z", "X")
_TELLS_CHILDREN: Final = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Linux lists the children of a process, gVisor does not."""
_QUICK_LOOKS: Final = 50
_PAUSE_S: Final = 0.001


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    if not _TELLS_CHILDREN:
        numbers = (int(name) for name in os.listdir("/proc") if name.isdigit())
        return [number for number in numbers if parent_of(number) == pid]
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as children:
                found.extend(int(child) for child in children.read().split())
    return found


def descendants_of(*roots: int, apart: Collection[int] = ()) -> list[int]:
    """Return all descendants of `roots`; do not descend below processes in `apart`."""
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        below = children_of(waiting.pop())
        found.extend(below)
        waiting.extend(pid for pid in below if pid not in apart)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process is alive; a zombie is not."""
    return _stat_of(pid)[_STATE] not in _DEAD


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped or dead."""
    return _stat_of(pid)[_STATE] in ("T", *_DEAD)


def parent_of(pid: int) -> int:
    """Return the parent's pid; 0 if there is no such process."""
    return int(_stat_of(pid)[_PARENT])


def _stat_of(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` after the name."""
    with suppress(OSError), open(f"/proc/{pid}/stat") as fields:
        return fields.read().rpartition(")")[2].split()
    return ["X", "0"]


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it exists; 0 stands for no process."""
    if pid > 0:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def set_oom_score(pid: int, score: int) -> None:
    """Set which process is killed first when memory runs out; no effect on a hidden process."""
    with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write(str(score))


def pause(look: int) -> None:
    """Let other processes run before the next check; sleep after many checks."""
    if look < _QUICK_LOOKS:
        os.sched_yield()
    else:
        select.select((), (), (), _PAUSE_S)
