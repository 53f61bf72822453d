"""Finds the kernel manager's processes: as Linux lists them, or by trying pids.

gVisor has one `/proc` for all pid namespaces, with the pids of the outermost, and no reaper except
PID 1. There, the kernel manager can neither look up its processes nor adopt them. But all processes
in its pid namespace are its descendants, so it tries every pid that was assigned.
"""

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Final, Protocol

from assay.sandbox.native.guest.descendants import (
    children_of,
    descendants_of,
    is_alive,
    is_stopped,
    parent_of,
    set_oom_score,
)
from assay.sandbox.native.kernel import libc

_FIRST_PID: Final = 2
_PIDS: Final = 1 << 15


class Relatives(Protocol):
    """What the kernel manager can find out about its descendants, and do to them."""

    adopts: bool
    """Whether a process can adopt orphans."""

    def is_child(self, pid: int, *parents: int) -> bool:
        """Whether one of `parents` has forked it, as far as that is known."""
        ...

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
        ...

    def has_stopped(self, pid: int) -> bool: ...

    def rank(self, pid: int, score: int) -> None:
        """Set which process is killed first when memory runs out."""
        ...


class ListedRelatives:
    """Finds descendants in Linux's lists of children."""

    adopts = True

    def __init__(self) -> None:
        self._me = os.getpid()

    def is_child(self, pid: int, *parents: int) -> bool:
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
        set_oom_score(pid, score)


class NumberedRelatives:
    """Finds descendants by trying every pid; pids increase and wrap around only at the top."""

    adopts = False

    def __init__(self) -> None:
        self._me = os.getpid()
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


def open_relatives() -> Relatives:
    """Adopt orphans where the kernel supports it, and choose the implementation accordingly."""
    try:
        libc.adopt_orphans()
    except OSError:
        return NumberedRelatives()
    return ListedRelatives()
