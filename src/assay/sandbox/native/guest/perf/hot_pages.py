"""Makes the kernel copy pages during a zygote's fork that its children write to.

After a fork, memory is shared, and each page is copied at the first write, which costs a page
fault. The children of a zygote write to the same few hundred pages every time. A page that is
pinned for a device must not change, so the kernel copies it during the fork. That costs less than
half, and the zygote's own page stays writable. So one child runs first, and the pages that it wrote
to are pinned as buffers of an unused io_uring.

This affects only speed: if the kernel refuses, pages are copied as usual.
"""

import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

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
        ranges = merge(self._written())
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


def merge(pages: Iterable[int]) -> Ranges:
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
