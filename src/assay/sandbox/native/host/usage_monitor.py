"""Measures what an execution uses while it runs: by its control group, or process by process."""

import os
import stat
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from assay.sandbox.native.host.files import disk_use
from assay.sandbox.native.host.memory_use import (
    MemoryFiles,
    UnmappedSharedMemory,
    fields_of,
    held_by,
)
from assay.sandbox.native.kernel import libc

if TYPE_CHECKING:
    # The E2B agent imports this module with the standard library only.
    from assay.sandbox.native.host.jail import Jail

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_STATE, _PARENT, _FAULTS, _FAULTS_OF_CHILDREN, _USER_TIME, _SYSTEM_TIME = 0, 1, 7, 8, 11, 12
_NO_LIMIT: Final = 1 << 22
_TELLS_CHILDREN: Final = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Linux lists children; gVisor does not, and it reports fewer kinds of memory."""
_LONGEST_COMMAND: Final = 4096
"""The number of bytes that are read: a program may have set a very long command line."""
_PAUSES_PER_LOOK: Final = 3
"""The pause after measuring a disk, as a multiple of the time that the measurement took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Usage so far: total CPU time, peak memory and processes, current disk."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    processes: int = 0
    disk_bytes: int = 0


class Watch(Protocol):
    """Measures a running execution every few milliseconds."""

    @property
    def enforcing(self) -> bool:
        """Whether the kernel enforces the limits of memory, processes and disk."""
        ...

    def look(self) -> Usage: ...

    def forget_peaks(self) -> None:
        """Reset the peaks to the current values."""
        ...


class GroupWatch:
    """Usage by control group: the kernel enforces all limits except CPU time."""

    enforcing = True

    def __init__(self, jail: "Jail") -> None:
        self._group = jail.group

    def look(self) -> Usage:
        return Usage(cpu_s=self._group.cpu_s())

    def forget_peaks(self) -> None:
        self._group.forget_peaks()


class GroupAndDiskWatch(GroupWatch):
    """Usage by control group and disk, for a workspace that is a folder on the host's disk.

    Nothing here reads the memory of a process. A process whose memory is read while the kernel
    kills it for lack of memory keeps that memory until the read ends. The kernel then finds no
    memory freed, and kills another process of the group.
    """

    enforcing = False

    def __init__(self, jail: "Jail", places: Sequence[Path], *, act_as: int | None = None) -> None:
        super().__init__(jail)
        self._family = jail.host_pids()
        self._disk = _DiskLook(places, act_as)

    def look(self) -> Usage:
        return replace(super().look(), disk_bytes=self._disk.look(_program_of(self._family)))


class CellWatch:
    """Usage of one cell of an interpreter, without that of earlier cells."""

    def __init__(self, watch: Watch, *, own_processes: int) -> None:
        watch.forget_peaks()
        if isinstance(watch, ProcessWatch):
            watch.leave_out_the_first()
        self._watch = watch
        self._own_processes = own_processes
        """The number of our own processes, which do not count as the cell's."""
        self._cpu_before_s = watch.look().cpu_s
        self.enforcing = watch.enforcing

    def look(self) -> Usage:
        sample = self._watch.look()
        return replace(
            sample,
            cpu_s=sample.cpu_s - self._cpu_before_s,
            processes=max(0, sample.processes - self._own_processes),
        )

    def forget_peaks(self) -> None:
        self._watch.forget_peaks()


class Family(Protocol):
    """The processes of one execution."""

    def host_pids(self) -> list[int]:
        """Return PID 1, which is not measured but whose descendants are, then other roots."""
        ...


class ProcessWatch:
    """Usage by process tree, for machines without control groups.

    Resident memory is fast to read and counts shared pages in full. Only if the result could exceed
    the limit, each page is divided by its number of owners. Memory that the prepared worker shares
    with the zygote at its start does not count. See `memory_use.py` for what else counts.
    """

    enforcing = False

    def __init__(
        self,
        family: Family,
        memory_bytes: int,
        places: Sequence[Path] = (),
        *,
        processes: int = _NO_LIMIT,
        act_as: int | None = None,
        files: int | None = None,
    ) -> None:
        """Start measuring; `files` is a descriptor of the workspace if that is in memory."""
        self._family = family.host_pids()
        self._first = self._family[0] if self._family else None
        self._processes = processes
        self._memory_bytes = memory_bytes
        self._disk = _DiskLook(places, act_as)
        self._cpu_of: dict[int, float] = {}
        self._faults_of: dict[int, int] = {}
        self._files = None if files is None else MemoryFiles(files)
        self._unmapped = UnmappedSharedMemory()
        self._mapped_files = 0
        self._mapped_due = 0.0
        self._peak_bytes = 0
        self._most = 0
        self._on_disk = 0
        self._left_out: frozenset[int] = frozenset()
        self._begin()

    def _begin(self) -> None:
        """Measure what the prepared worker holds at the start."""
        self._at_first = frozenset(self._program())
        self._inherited = held_by(self._at_first, fairly=True).total

    def leave_out_the_first(self) -> None:
        """Do not count the memory of the first process, which is the kernel manager.

        It hides from its cells, and so from an unprivileged supervisor too: each page that it
        shares with them would count in full.
        """
        self._left_out = self._at_first

    def look(self) -> Usage:
        pids = self._program()
        threads = 0
        for pid in pids:
            fields = _stat(pid)
            self._cpu_of[pid] = max(self._cpu_of.get(pid, 0.0), _cpu_s(fields))
            self._faults_of[pid] = max(self._faults_of.get(pid, 0), _faults(fields))
            threads += 0 if _is_zombie_of_first(pid, fields, self._first) else _threads(pid)
            if threads > self._processes:
                # Over the limit already: a fork bomb grows while it is counted.
                break
        else:
            self._look_at_memory([pid for pid in pids if pid not in self._left_out])
            self._on_disk = self._disk.look(pids)
        self._most = max(self._most, threads)
        return Usage(
            cpu_s=sum(self._cpu_of.values()),
            memory_bytes=self._peak_bytes,
            processes=self._most,
            disk_bytes=self._on_disk,
        )

    def forget_peaks(self) -> None:
        self._peak_bytes = self._most = 0

    def _look_at_memory(self, pids: list[int]) -> None:
        held = held_by(pids)
        files = self._files.grown_bytes(pids) if self._files else 0
        elsewhere = max(files, self._unmapped.grown_bytes())
        seen = held.total + files
        if held.total + elsewhere > min(self._memory_bytes, self._peak_bytes):
            seen = self._look_closely(pids, files)
        self._peak_bytes = max(self._peak_bytes, seen)

    def _look_closely(self, pids: list[int], files: int) -> int:
        """Count each page once, even if it belongs to a file or to several processes."""
        held = held_by(pids, fairly=True)
        counted = max(0, held.total - self._inherited) + files
        if files and held.shared and counted > self._peak_bytes:
            must = counted > self._memory_bytes
            counted -= min(files, held.shared, self._look_at_mapped_files(pids, must=must))
        unexplained = self._unmapped.grown_bytes() - files - held.shared
        if counted + unexplained > self._memory_bytes:
            counted += self._unmapped.charge(
                pids, unexplained=unexplained, faults=sum(self._faults_of.values())
            )
        return counted

    def _look_at_mapped_files(self, pids: list[int], *, must: bool) -> int:
        """Read every mapping. This is slow, so it pauses like disk measurement unless `must`."""
        begun = time.monotonic()
        if self._files is not None and (must or begun >= self._mapped_due):
            self._mapped_files = self._files.mapped_bytes(pids)
            ended = time.monotonic()
            self._mapped_due = ended + _PAUSES_PER_LOOK * (ended - begun)
        return self._mapped_files

    def _program(self) -> list[int]:
        return _program_of(self._family)


class _DiskLook:
    """Disk usage of a sandbox's files on the host's disk, including removed files still open."""

    def __init__(self, places: Sequence[Path], act_as: int | None) -> None:
        self._places = places
        self._act_as = act_as
        self._devices = _devices_of(places)
        self._on_disk = 0
        self._due = 0.0

    def look(self, pids: Sequence[int]) -> int:
        """Return the usage; measure seldom if a workspace has very many files."""
        if not self._places:
            return 0
        with libc.file_access_as(self._act_as):
            nameless = _nameless_bytes(pids, self._devices)
        begun = time.monotonic()
        if begun >= self._due:
            with libc.file_access_as(self._act_as):
                self._on_disk = sum(disk_use(place) for place in self._places)
            ended = time.monotonic()
            self._due = ended + _PAUSES_PER_LOOK * (ended - begun)
        return self._on_disk + nameless


def _program_of(family: Sequence[int]) -> list[int]:
    """Return all processes of an execution except its PID 1, which comes first in the family."""
    if not family:
        return []
    first, *apart = family
    below = (pid for worker in apart if worker for pid in process_tree(worker))
    return list(dict.fromkeys((*process_tree(first)[1:], *below)))


class ContainedWatch(ProcessWatch):
    """Usage by process tree in gVisor, which does not tell how many processes share a page.

    Each fork of the first process starts with the pages of that process, which do not count. Pages
    that the program shares among its own processes would count once for each. But gVisor reports
    the memory of all programs together, each page once, so the growth of that total is an upper
    bound.
    """

    def _begin(self) -> None:
        self._before = _anonymous_bytes()
        super()._begin()
        self._begins_with = _largest_by_command(self._at_first)

    def leave_out_the_first(self) -> None:
        if not self._left_out:
            # No cell has run yet: the process that waits for the first one holds no program memory.
            self._begins_with = _largest_by_command(self._program())
        super().leave_out_the_first()

    def _look_at_memory(self, pids: list[int]) -> None:
        held = sum(self._taken_bytes(pid) for pid in pids)
        if held > self._peak_bytes:
            grown = max(0, _anonymous_bytes() - self._before)
            self._peak_bytes = max(self._peak_bytes, min(grown, held))

    def _taken_bytes(self, pid: int) -> int:
        """Return the memory of a process beyond that of its start; all of it for other commands."""
        # In this order: a process that has no command line because it exits holds no memory either.
        begun_with = self._begins_with.get(_command_line(pid), 0)
        return max(0, _resident_bytes(pid) - begun_with)


def _largest_by_command(pids: Iterable[int]) -> dict[bytes, int]:
    return dict(sorted((_command_line(pid), _resident_bytes(pid)) for pid in pids))


def _command_line(pid: int) -> bytes:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
        return file.read(_LONGEST_COMMAND)
    return b""


def _anonymous_bytes() -> int:
    return (fields_of("/proc/meminfo", ("AnonPages",)) or {}).get("AnonPages", 0) << 10


def process_tree(first: int) -> list[int]:
    """Return a process and its descendants. Orphans go to the PID 1 of the jail, so none escape."""
    if not _TELLS_CHILDREN:
        return _tree_by_parents(first)
    found = [first]
    for pid in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                children = Path(f"/proc/{pid}/task/{task}/children").read_text()
                found.extend(int(child) for child in children.split())
    return found


def _tree_by_parents(first: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))):
            children.setdefault(int(fields[_PARENT]), []).append(int(name))
    found = [first]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _threads(pid: int) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


def count_processes(uid: int) -> int:
    """Count the processes and threads of a user on this machine."""
    total = 0
    for entry in os.scandir("/proc"):
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                total += _threads(int(entry.name))
    return total


def _devices_of(places: Iterable[Path]) -> set[int]:
    found: set[int] = set()
    for place in places:
        with suppress(OSError):
            found.add(os.stat(place).st_dev)
    return found


def _nameless_bytes(pids: Sequence[int], devices: Collection[int]) -> int:
    """Return the size of removed files that are still open, on the given devices."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    found = os.stat(f"/proc/{pid}/fd/{number}")
                    nameless = stat.S_ISREG(found.st_mode) and found.st_nlink == 0
                    if nameless and found.st_dev in devices:
                        sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


def _resident_bytes(pid: int) -> int:
    """Return the anonymous memory of a process; in gVisor, all of its resident memory."""
    if _TELLS_CHILDREN:
        return held_by([pid]).total
    return (fields_of(f"/proc/{pid}/status", ("VmRSS",)) or {}).get("VmRSS", 0) << 10


def _stat(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` after the name; empty if the process is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _cpu_s(fields: list[str]) -> float:
    return (int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])) / _TICKS if fields else 0.0


def _faults(fields: list[str]) -> int:
    """Return the page faults of a process and of the children that it has reaped."""
    return int(fields[_FAULTS]) + int(fields[_FAULTS_OF_CHILDREN]) if fields else 0


def _is_zombie_of_first(pid: int, fields: list[str], first: int | None) -> bool:
    """Whether a process and all its threads are dead and PID 1 of the jail has to reap it.

    A program with short-lived processes must not be charged for a PID 1 that is slow to be
    scheduled.
    """
    if not fields or fields[_STATE] != "Z" or int(fields[_PARENT]) != first:
        return False
    return _threads(pid) <= 1
