"""Gathers the memory of a zygote into large pages, once it has imported what it should.

A fork and an exit go through memory page by page, and each execution pays for one of both. A
large page counts as one. Nothing but speed depends on it: what the kernel refuses stays as it is.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from assay.sandbox.native import kernel

_LARGE: Final = 2 << 20
_OWN_AND_WRITABLE: Final = "rw-p"
_HEAP: Final = "[heap]"


def gather() -> None:
    """Ask for large pages wherever this process has memory of its own for a whole one."""
    with suppress(OSError):
        with open("/proc/self/maps") as lines:
            text = lines.read()
        for address in whole_large_pages(text):
            # Some may be refused, such as memory that was never used.
            with suppress(OSError):
                kernel.collapse_memory(address, _LARGE)


def whole_large_pages(maps: str) -> Iterator[int]:
    """Where large pages could begin, given the text of `/proc/PID/maps`."""
    for line in maps.splitlines():
        addresses, access, _, _, _, *name = line.split()
        if access == _OWN_AND_WRITABLE and name in ([], [_HEAP]):
            start, end = (int(address, 16) for address in addresses.split("-"))
            yield from range(-(-start // _LARGE) * _LARGE, end - _LARGE + 1, _LARGE)
