"""What an execution uses, read from outside while it runs: by its group, or process by process."""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from assay.sandbox.native.cell import Cell

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_USER_TIME, _SYSTEM_TIME = 11, 12
_PER_NAME: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Use so far: processor time in total, memory and processes at their highest."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    processes: int = 0
    disk_bytes: int = 0


class Watch(Protocol):
    """Looks at a running execution every few milliseconds."""

    def look(self) -> Sample: ...


class GroupWatch:
    """The kernel counts and enforces; only processor time needs looking at."""

    def __init__(self, cell: Cell) -> None:
        self._group = cell.group

    def look(self) -> Sample:
        return Sample(cpu_s=self._group.cpu_s())


class ProcessWatch:
    """Adds up the process tree, for machines where we may not make control groups.

    Resident memory is quick to read and counts shared pages fully; only when it could be too much
    is each page looked up with its number of owners. What the prepared worker shares with the
    zygote when it starts is not the program's.
    """

    def __init__(self, cell: Cell, memory_bytes: int, box: Path | None = None) -> None:
        self._first, *self._apart = cell.host_pids() or [None]
        self._memory_bytes = memory_bytes
        self._box = box
        self._cpu_of: dict[int, float] = {}
        self._peak_bytes = 0
        self._most = 0
        self._inherited = sum(_fair_bytes(pid) for pid in self._program())

    def look(self) -> Sample:
        pids = self._program()
        for pid in pids:
            self._cpu_of[pid] = max(self._cpu_of.get(pid, 0.0), _cpu_s(pid))
        held = sum(_resident_bytes(pid) for pid in pids)
        if held > min(self._memory_bytes, self._peak_bytes):
            held = max(0, sum(_fair_bytes(pid) for pid in pids) - self._inherited)
        self._peak_bytes = max(self._peak_bytes, held)
        self._most = max(self._most, sum(_threads(pid) for pid in pids))
        return Sample(
            cpu_s=sum(self._cpu_of.values()),
            memory_bytes=self._peak_bytes,
            processes=self._most,
            disk_bytes=0 if self._box is None else disk_use(self._box) + _nameless_bytes(pids),
        )

    def _program(self) -> list[int]:
        if self._first is None:
            return []
        apart = (pid for worker in self._apart if worker for pid in process_tree(worker))
        return list(dict.fromkeys((*process_tree(self._first)[1:], *apart)))


def process_tree(first: int) -> list[int]:
    """A process and all its descendants. Orphans of a cell fall to its PID 1, so none escape."""
    found = [first]
    for pid in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                children = Path(f"/proc/{pid}/task/{task}/children").read_text()
                found.extend(int(child) for child in children.split())
    return found


def _threads(pid: int) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


def count_processes(uid: int) -> int:
    """How many processes and threads a user has on this machine."""
    total = 0
    for entry in os.scandir("/proc"):
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                total += _threads(int(entry.name))
    return total


def disk_use(folder: Path) -> int:
    """What a box on the host's own disk takes up, names included. Links are not followed."""
    total = 0
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(OSError):
                total += _PER_NAME + os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def _nameless_bytes(pids: list[int]) -> int:
    """What removed files take up that are still open."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    found = os.stat(f"/proc/{pid}/fd/{number}")
                    if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                        sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


def _resident_bytes(pid: int) -> int:
    """Memory of no file that a process has mapped, whoever else has it too."""
    return _sum_fields(f"/proc/{pid}/status", ("RssAnon", "RssShmem"))


def _fair_bytes(pid: int) -> int:
    """The same, each page divided by the number of processes that hold it."""
    return _sum_fields(f"/proc/{pid}/smaps_rollup", ("Pss_Anon", "Pss_Shmem"))


def _sum_fields(path: str, names: tuple[str, ...]) -> int:
    total_kb = 0
    with suppress(OSError, ValueError):
        for line in Path(path).read_text().splitlines():
            name, _, value = line.partition(":")
            if name in names:
                total_kb += int(value.split()[0])
    return total_kb << 10


def _cpu_s(pid: int) -> float:
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])) / _TICKS
    return 0.0
