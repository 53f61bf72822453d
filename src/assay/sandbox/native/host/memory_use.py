"""Counts the memory of an execution without control groups: its processes and files.

Most of it is mapped memory. The rest counts too: page tables, open files, files in a tmpfs, socket
buffers, and shared memory that processes hold without a mapping.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from assay.sandbox.native.guest.jail_spec import SHM_BYTES

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_LARGE_PAGE: Final = 2 << 20
_FEW_FILES: Final = 256
_PER_OPEN_FILE: Final = 2048
"""About the size of the kernel's structures for a socket or half a pipe, without its buffer."""
_PER_INODE: Final = 1024
_SHARED_MEMORY: Final = "dev/shm"
_SHARED_ANONYMOUS: Final = b"/dev/zero (deleted)"
_LARGE_SHARED_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that processes hold, in bytes."""

    own: int = 0
    """Anonymous memory, page tables and the cost of open files."""
    shared: int = 0
    """Mapped pages of a tmpfs and of shared memory."""

    def __add__(self, other: "Held") -> "Held":
        return Held(self.own + other.own, self.shared + other.shared)

    @property
    def total(self) -> int:
        return self.own + self.shared


def resident(pid: int) -> Held:
    """Count the memory of a process, shared pages in full. This is fast and cannot be hidden."""
    found = fields_of(f"/proc/{pid}/status", ("RssAnon", "VmPTE", "RssShmem", "FDSize"))
    return Held() if found is None else _counted(found, "RssAnon", "RssShmem")


def fair(pid: int) -> Held:
    """Count like `resident`, but divide each page by the number of processes that share it.

    For a process that hides this from its own user (`PR_SET_DUMPABLE`), every page counts in full.
    """
    shares = fields_of(f"/proc/{pid}/smaps_rollup", ("Pss_Anon", "Pss_Shmem"))
    if shares is None:
        return resident(pid)
    others = fields_of(f"/proc/{pid}/status", ("VmPTE", "FDSize")) or {}
    return _counted({**shares, **others}, "Pss_Anon", "Pss_Shmem")


def _counted(found: dict[str, int], own: str, shared: str) -> Held:
    pages_kb = found.get(own, 0) + found.get("VmPTE", 0)
    files = max(0, found.get("FDSize", 0) - _FEW_FILES) * _PER_OPEN_FILE
    return Held((pages_kb << 10) + files, found.get(shared, 0) << 10)


def held_by(pids: Iterable[int], *, fairly: bool = False) -> Held:
    count = fair if fairly else resident
    return sum(map(count, pids), Held())


def fields_of(path: str, names: Sequence[str]) -> dict[str, int] | None:
    """Read numbers by name from a file; None if it is gone or unreadable."""
    try:
        text = Path(path).read_text()
    except OSError:
        return None
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in names:
            found[name] = int(value.split()[0])
    return found


class MemoryFiles:
    """The memory of a sandbox's files in a tmpfs: its workspace and `/dev/shm`."""

    def __init__(self, workspace: int) -> None:
        self._workspace = workspace
        self._before = _used_bytes(os.fstatvfs(workspace))
        self._box = os.fstat(workspace).st_dev
        self._devices = {self._box}

    def grown_bytes(self, pids: Sequence[int]) -> int:
        """Return the growth since the execution began, and all of its own `/dev/shm`."""
        grown = max(0, _used_bytes(os.fstatvfs(self._workspace)) - self._before)
        return grown + self._shared_memory_bytes(pids)

    def _shared_memory_bytes(self, pids: Sequence[int]) -> int:
        hidden = 0
        for pid in pids:
            place = f"/proc/{pid}/root/{_SHARED_MEMORY}"
            try:
                found, device = os.statvfs(place), os.stat(place).st_dev
            except PermissionError:
                # The process hides from its own user: assume that its `/dev/shm` is full.
                hidden = SHM_BYTES
                continue
            except OSError:
                continue
            self._devices.add(device)
            return 0 if device == self._box else _used_bytes(found)
        return hidden

    def mapped_bytes(self, pids: Iterable[int]) -> int:
        """Return how much of these files is mapped. Slow: this reads every mapping."""
        return sum(_mapped_bytes(pid, self._devices) for pid in pids)


def _used_bytes(found: os.statvfs_result) -> int:
    blocks = (found.f_blocks - found.f_bfree) * found.f_frsize
    return blocks + (found.f_files - found.f_ffree) * _PER_INODE


def _mapped_bytes(pid: int, devices: set[int]) -> int:
    total_kb, counts = 0, False
    with suppress(OSError), open(f"/proc/{pid}/smaps") as lines:
        for line in lines:
            name, *words = line.split(maxsplit=4)
            if not name.endswith(":"):
                major, _, minor = words[2].partition(":")
                counts = os.makedev(int(major, 16), int(minor, 16)) in devices
            elif counts and name == "Pss:":
                total_kb += int(words[0])
    return total_kb << 10


class UnmappedSharedMemory:
    """Shared memory that exists although no process maps its pages.

    The kernel shows only the total of shared memory on the machine. An execution is charged with
    the growth of that total if it has shared anonymous memory, and at most with one page per page
    fault.
    """

    def __init__(self) -> None:
        self._before = _shared_bytes()
        self._page = _shared_page()

    def grown_bytes(self) -> int:
        return max(0, _shared_bytes() - self._before)

    def charge(self, pids: Iterable[int], *, unexplained: int, faults: int) -> int:
        """Return the part of the unexplained growth that the processes can have caused."""
        possible = min(unexplained, faults * self._page)
        return possible if possible > 0 and any(map(_has_shared_anonymous, pids)) else 0


def _shared_bytes() -> int:
    return (fields_of("/proc/meminfo", ("Shmem",)) or {}).get("Shmem", 0) << 10


def _shared_page() -> int:
    with suppress(OSError):
        chosen = _LARGE_SHARED_PAGES.read_text()
        if "[never]" in chosen or "[deny]" in chosen:
            return _PAGE
    return _LARGE_PAGE


def _has_shared_anonymous(pid: int) -> bool:
    try:
        return _SHARED_ANONYMOUS in Path(f"/proc/{pid}/maps").read_bytes()
    except PermissionError:
        return True
    except OSError:
        return False
