"""Optimizes a zygote's memory layout before it serves, so that forks are cheap.

Large pages: memory is collapsed into them after the imports, because a fork and an exit process
memory page by page. Hot pages: the kernel copies pages that every child writes to during the fork,
instead of at a page fault for each. A rehearsal, one trial process, finds these pages. All of this
affects only speed: if the kernel refuses, the memory stays as it is.
"""

import json
import mmap
import os
import signal
import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

from assay.sandbox.native.guest import jail_mounts, pid1, worker
from assay.sandbox.native.guest.worker import Confinement, Descriptors
from assay.sandbox.native.kernel import libc

Ranges = list[tuple[int, int]]
"""Address and length of memory ranges."""

_PAGE: Final = mmap.PAGESIZE
_FEWEST: Final = 32
_ENTRY: Final = struct.Struct("=Q")
_PRESENT: Final = 1 << 63
_OF_A_FILE: Final = 1 << 61
_NOBODY_ELSES: Final = 1 << 56


class Footprints:
    """The pages that a child has written to. Create it while the child is dumpable."""

    def __init__(self, pid: int) -> None:
        with open("/proc/self/maps") as lines:
            self._maps = lines.read()
        self._pages = open(f"/proc/{pid}/pagemap", "rb", buffering=0)  # noqa: SIM115 - see `close`

    def keep_ready(self) -> None:
        """Pin those pages here while the child lives, after copying the pages that it shares."""
        ranges = merge_ranges(self._written())
        with suppress(OSError):
            for start, length in ranges:
                # A large page would be pinned, and copied, as a whole.
                libc.own_memory(start, length)
            _pin(ranges)

    def _written(self) -> Iterator[int]:
        for start, end in heap_ranges(self._maps):
            where, size = (part // _PAGE * _ENTRY.size for part in (start, end - start))
            entries = os.pread(self._pages.fileno(), size, where)
            for number, (entry,) in enumerate(_ENTRY.iter_unpack(entries)):
                if entry & _PRESENT and entry & _NOBODY_ELSES and not entry & _OF_A_FILE:
                    yield start + number * _PAGE

    def close(self) -> None:
        self._pages.close()


def heap_ranges(maps: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of private writable memory, from the text of `/proc/PID/maps`."""
    for line in maps.splitlines():
        addresses, access, *_ = line.split()
        if access == "rw-p":
            start, _, end = addresses.partition("-")
            yield int(start, 16), int(end, 16)


def merge_ranges(pages: Iterable[int]) -> Ranges:
    """Merge page addresses into ranges of adjacent pages."""
    ranges: Ranges = []
    for page in sorted(pages):
        if ranges and sum(ranges[-1]) == page:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + _PAGE)
        else:
            ranges.append((page, _PAGE))
    return ranges


def _pin(ranges: Sequence[tuple[int, int]]) -> None:
    """Pin all ranges, or as many as this user's limit allows."""
    while len(ranges) >= _FEWEST:
        try:
            libc.pin_memory(ranges)
        except MemoryError:
            ranges = ranges[: len(ranges) // 2]
        else:
            return


_LARGE: Final = 2 << 20
_ARENA: Final = 1 << 20
_ARENAS: Final = 40
_LARGEST_SMALL_OBJECT: Final = 512 - 33
_OBJECTS_PER_ARENA: Final = _ARENA // 512
_OWN_AND_WRITABLE: Final = "rw-p"
_HEAP: Final = "[heap]"


@contextmanager
def contiguous_heap() -> Generator[None]:
    """Make imports inside this context allocate contiguous memory, as large pages require.

    The interpreter allocates memory for small objects in arenas, and libraries that are loaded in
    between would scatter the arenas. Therefore many arenas are allocated first, each held by an
    object. Unused arenas are freed afterwards.
    """
    objects = [bytes(_LARGEST_SMALL_OBJECT) for _ in range(_ARENAS * _OBJECTS_PER_ARENA)]
    one_in_each = objects[:: _OBJECTS_PER_ARENA // 2]
    objects.clear()
    try:
        yield
    finally:
        one_in_each.clear()


def gather_large_pages() -> None:
    """Request large pages wherever this process has enough private memory for one."""
    with suppress(OSError):
        with open("/proc/self/maps") as lines:
            text = lines.read()
        for address in whole_large_pages(text):
            # Some are refused, such as memory that was never used.
            with suppress(OSError):
                libc.collapse_memory(address, _LARGE)


def whole_large_pages(maps: str) -> Iterator[int]:
    """Yield the addresses where large pages fit, from the text of `/proc/PID/maps`."""
    for line in maps.splitlines():
        addresses, access, _, _, _, *name = line.split()
        if access == _OWN_AND_WRITABLE and name in ([], [_HEAP]):
            start, end = (int(address, 16) for address in addresses.split("-"))
            yield from range(-(-start // _LARGE) * _LARGE, end - _LARGE + 1, _LARGE)


_SLOT: Final = f"{jail_mounts.SLOTS}/rehearsal"
_HEADER: Final[dict[str, object]] = {
    "kind": "python",
    "filename": "rehearsal.py",
    "args": ["a"],
    "cwd": "",
    "workspace": "",
    "writable": [],
    "readable": [],
    "packages": "",
    "folders": [],
    "env": {"A": "a"},
    "rlimits": {"RLIMIT_CORE": 0},
}
_PROGRAM: Final = b"import sys\nprint(flush=True)\nsys.stdin.read()\n"


def rehearse_cell(confinement: Confinement) -> None:
    """Let a PID 1 build a jail; for the zygote that forks PID 1 of all jails.

    Raises:
        OSError: If that fails, which affects only speed.
    """
    waits, opens = os.pipe()
    hears, tells = os.pipe()
    nowhere = os.open("/dev/null", os.O_WRONLY)
    pid, pidfd = libc.clone_process(libc.ALL_NAMESPACES)
    if pid == 0:
        pid1.prepare_jail(_SLOT, (), confinement, gate=waits, ready=tells, status=nowhere)
    _close(waits, tells, nowhere, pidfd)
    try:
        _learn(pid, opens, hears)
    finally:
        _end(pid)
        _close(hears)
        for folder in (*(f"{_SLOT}/{name}" for name in jail_mounts.BOX_FOLDERS), _SLOT):
            with suppress(FileNotFoundError):
                os.rmdir(folder)


def rehearse_work(confinement: Confinement) -> None:
    """Let a worker run a program, as far as that works without a jail; for all other zygotes.

    Raises:
        OSError: If that fails, which affects only speed.
    """
    takes, gives = os.pipe()
    hears, tells = os.pipe()
    stays, opens = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(opens)
        os.close(gives)
        _work(takes, stays, tells, confinement)
    _close(takes, stays, tells)
    try:
        os.write(gives, json.dumps(_HEADER).encode() + b"\n" + _PROGRAM)
        _learn(pid, gives, hears)
    finally:
        _end(pid)
        _close(hears, opens)


def _work(program: int, stdin: int, stdout: int, confinement: Confinement) -> NoReturn:
    nowhere = os.open("/dev/null", os.O_WRONLY)
    streams = Descriptors(go=program, stdin=stdin, stdout=stdout, stderr=nowhere, status=nowhere)
    try:
        pid1.lock(confinement)
        worker.serve(streams, confinement)
    finally:
        os._exit(1)


def _learn(pid: int, opens: int, hears: int) -> None:
    """Inspect a process when it has done its work and waits."""
    footprints = Footprints(pid)
    try:
        os.write(opens, b"\n")
        os.close(opens)
        if os.read(hears, 1):
            footprints.keep_ready()
    finally:
        footprints.close()


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
