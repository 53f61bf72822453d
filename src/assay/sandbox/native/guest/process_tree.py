"""Process tree of an execution: as Linux lists it, or found by trying pids; signals and ranks.

gVisor has one `/proc` for all pid namespaces, with the pids of the outermost, and no reaper except
PID 1. There, the kernel manager can neither look up its processes nor adopt them.
"""

import os
import select
import signal
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from assay.sandbox.native.kernel import libc

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


_FIRST_PID: Final = 2
_PIDS: Final = 1 << 15


class ListedRelatives:
    """What the kernel manager finds out about its descendants, in Linux's lists of children."""

    adopts = True
    """Whether a process can adopt orphans."""

    def __init__(self) -> None:
        self._me = os.getpid()

    def is_child(self, pid: int, *parents: int) -> bool:
        """Whether one of `parents` has forked it, as far as that is known."""
        return parent_of(pid) in parents

    def find(
        self,
        roots: Collection[int],
        below: Collection[int],
        known: set[int],
        *,
        alone: bool,
        newborn: Collection[int] = (),
    ) -> list[int]:
        """Return the live processes of `roots`, their descendants, those of `below`, and orphans.

        The result contains no known process, and no orphan in a `newborn` session, where a branch
        is being forked. If descent is known, it contains no descendant of a known process outside
        `roots` and `below`. `alone`: no other cell is running.
        """
        del alone  # orphans of other cells are adopted by those cells
        orphans = (pid for pid in children_of(self._me) if pid not in known)
        strays = [pid for pid in orphans if session_of(pid) not in newborn]
        tops = [*roots, *strays]
        # A former Python kernel that is not dead yet counts as an orphan and is its successor's
        # parent. The successor's children belong to it, such as a new cell that is not reported
        # yet.
        found = [*tops, *descendants_of(*tops, *below, apart=known)]
        return [pid for pid in found if pid not in known and is_alive(pid)]

    def has_stopped(self, pid: int) -> bool:
        return is_stopped(pid)

    def rank(self, pid: int, score: int) -> None:
        """Set which process is killed first when memory runs out."""
        set_oom_score(pid, score)


class NumberedRelatives(ListedRelatives):
    """Finds descendants by trying every pid; pids increase and wrap around only at the top."""

    adopts = False

    def __init__(self) -> None:
        super().__init__()
        self._highest = self._me
        self._found: set[int] = set()
        """Processes that were found earlier: killed by now, at most zombies."""

    def is_child(self, pid: int, *parents: int) -> bool:
        del parents  # gVisor does not show parents
        return _FIRST_PID <= pid < _PIDS and pid != self._me

    def find(
        self,
        roots: Collection[int],
        below: Collection[int],
        known: set[int],
        *,
        alone: bool,
        newborn: Collection[int] = (),
    ) -> list[int]:
        numbers = range(_FIRST_PID, self._end_of_numbers(_newest_number()))
        # Our own threads have ids too, and killing one kills this process. They are checked second,
        # because a signal to a thread that has ended in between reaches no process.
        there = {pid for pid in numbers if _exists(pid) and not libc.is_own_thread(pid)}
        self._found &= there
        strange = there - known - self._found
        if not alone:
            # Only the session distinguishes processes of other cells from those of these roots.
            sessions = {session_of(pid) for pid in (*roots, *below)}
            strange = {pid for pid in strange if pid in roots or session_of(pid) in sessions}
        strange = {pid for pid in strange if pid in roots or session_of(pid) not in newborn}
        self._found |= strange
        return sorted(strange)

    def _end_of_numbers(self, newest: int) -> int:
        if newest < self._highest:
            self._highest = _PIDS
        self._highest = max(self._highest, newest)
        return self._highest

    def has_stopped(self, pid: int) -> bool:
        del pid  # unknown in gVisor, but a process cannot ignore the signal
        return True

    def rank(self, pid: int, score: int) -> None:
        """Do nothing: gVisor has no such setting."""


def _exists(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return True
    return False


def session_of(pid: int) -> int:
    """Return the session id of a process; an unused number if there is no such process."""
    with suppress(OSError):
        return os.getsid(pid)
    return -pid


def _newest_number() -> int:
    """Return the id of a new thread: threads share the pid sequence and start much faster."""
    numbers: list[int] = []
    thread = threading.Thread(target=lambda: numbers.append(threading.get_native_id()))
    thread.start()
    thread.join()
    return numbers[0]


def open_relatives() -> ListedRelatives:
    """Adopt orphans where the kernel supports it, and choose the implementation accordingly."""
    try:
        libc.adopt_orphans()
    except OSError:
        return NumberedRelatives()
    return ListedRelatives()
