"""How a keeper knows the processes it answers for: by what the kernel lists, or by trying numbers.

gVisor has one `/proc` for all pid namespaces, with the numbers of the outermost, and no reaper but
PID 1. A keeper there can neither look its processes up nor adopt them. But all that is in its pid
namespace descends from it, so it can try every number that was given out.
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
    """What a keeper can find out about processes below it, and have done to them."""

    adopts: bool
    """Whether orphans come to whoever asked for them."""

    def is_child(self, pid: int, *parents: int) -> bool:
        """Whether one of these has made it, as far as that can be known."""
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
        """Return who lives of some processes, of all below these and others, and of orphans.

        No known process is among them, nor an orphan in a session where a branch is being born;
        nor, where descent can be told, what is below a known process that was not named itself.
        `alone`: no cell runs beside these.
        """
        ...

    def has_stopped(self, pid: int) -> bool: ...

    def rank(self, pid: int, score: int) -> None:
        """Say who is to go first when memory runs out."""
        ...


class ListedRelatives:
    """As the kernel lists them."""

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
        del alone  # orphans of others come to others
        orphans = (pid for pid in children_of(self._me) if pid not in known)
        strays = [pid for pid in orphans if session_of(pid) not in newborn]
        tops = [*roots, *strays]
        # A former head that is not dead yet is a stray, above the head that took its place. What
        # that one has started belongs to it: a new cell, say, of which the keeper has not heard.
        found = [*tops, *descendants_of(*tops, *below, apart=known)]
        return [pid for pid in found if pid not in known and is_alive(pid)]

    def has_stopped(self, pid: int) -> bool:
        return is_stopped(pid)

    def rank(self, pid: int, score: int) -> None:
        set_oom_score(pid, score)


class NumberedRelatives:
    """By trying every number; those of a namespace go up, and begin again only at the top."""

    adopts = False

    def __init__(self) -> None:
        self._me = os.getpid()
        self._highest = self._me
        self._found: set[int] = set()
        """Whoever was found before has been killed since, and at most awaits burial."""

    def is_child(self, pid: int, *parents: int) -> bool:
        del parents  # nobody tells
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
        # Threads of ours that are not quite gone have numbers too: whoever ends one ends us. To be
        # asked about second: a number whose thread went in between reaches nobody.
        there = {pid for pid in numbers if _exists(pid) and not libc.is_own_thread(pid)}
        self._found &= there
        strange = there - known - self._found
        if not alone:
            # What others have started can be told from what these have left by its session only.
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
        del pid  # nobody tells; it was sent the signal, and cannot refuse it
        return True

    def rank(self, pid: int, score: int) -> None:
        """Nobody listens."""


def _exists(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return True
    return False


def session_of(pid: int) -> int:
    """A number that is nobody's if there is no such process."""
    with suppress(OSError):
        return os.getsid(pid)
    return -pid


def _newest_number() -> int:
    """Threads are numbered with processes, and a thread is made much more quickly."""
    numbers: list[int] = []
    thread = threading.Thread(target=lambda: numbers.append(threading.get_native_id()))
    thread.start()
    thread.join()
    return numbers[0]


def open_relatives() -> Relatives:
    """Become the one to whom orphans come, where the kernel knows such a thing."""
    try:
        libc.adopt_orphans()
    except OSError:
        return NumberedRelatives()
    return ListedRelatives()
