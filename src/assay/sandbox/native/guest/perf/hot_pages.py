"""Has the kernel copy, while a zygote forks, the pages that its children are going to write to.

Memory is shared after a fork, and each page is copied when somebody first writes to it, at the
price of a fault. The children of a zygote write to the same few hundred pages every time. A page
that is pinned for a device must not change under it, so the kernel copies such a page during the
fork, which costs less than half, and leaves the zygote's own writable. So we let one child run, see
which pages it wrote to, and pin those as the buffers of a ring that nobody ever uses.

Nothing but speed depends on it: where the kernel refuses, pages are copied as usual.
"""

import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from assay.sandbox.native.kernel import libc

Ranges = list[tuple[int, int]]
"""Address and length of memory."""

_PAGE: Final = mmap.PAGESIZE
_FEWEST: Final = 32
_ENTRY: Final = struct.Struct("=Q")
_PRESENT: Final = 1 << 63
_OF_A_FILE: Final = 1 << 61
_NOBODY_ELSES: Final = 1 << 56


class Footprints:
    """Which pages a child has written to. Opened while the child lets its parent look."""

    def __init__(self, pid: int) -> None:
        with open("/proc/self/maps") as lines:
            self._maps = lines.read()
        self._pages = open(f"/proc/{pid}/pagemap", "rb", buffering=0)  # noqa: SIM115 - see `close`

    def keep_ready(self) -> None:
        """Pin those pages here. The child must still live: what it holds too is copied first."""
        ranges = merge(self._written())
        with suppress(OSError):
            for start, length in ranges:
                # Memory in large pages would be pinned, and copied, as a whole.
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
    """Where writable memory of a process's own begins and ends, from its `/proc/PID/maps`."""
    for line in maps.splitlines():
        addresses, access, *_ = line.split()
        if access == "rw-p":
            start, _, end = addresses.partition("-")
            yield int(start, 16), int(end, 16)


def merge(pages: Iterable[int]) -> Ranges:
    """Turn addresses of pages into ranges of neighbours."""
    ranges: Ranges = []
    for page in sorted(pages):
        if ranges and sum(ranges[-1]) == page:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + _PAGE)
        else:
            ranges.append((page, _PAGE))
    return ranges


def _pin(ranges: Sequence[tuple[int, int]]) -> None:
    """Pin all, or as many as this user may."""
    while len(ranges) >= _FEWEST:
        try:
            libc.pin_memory(ranges)
        except MemoryError:
            ranges = ranges[: len(ranges) // 2]
        else:
            return
