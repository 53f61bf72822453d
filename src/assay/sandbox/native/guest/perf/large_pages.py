"""Gathers the memory of a zygote into large pages, once it has imported what it should.

A fork and an exit go through memory page by page, and each execution pays for one of both. A
large page counts as one. Nothing but speed depends on it: what the kernel refuses stays as it is.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from assay.sandbox.native.kernel import libc

_LARGE: Final = 2 << 20
_ARENA: Final = 1 << 20
_ARENAS: Final = 40
_LARGEST_SMALL_OBJECT: Final = 512 - 33
_OBJECTS_PER_ARENA: Final = _ARENA // 512
_OWN_AND_WRITABLE: Final = "rw-p"
_HEAP: Final = "[heap]"


@contextmanager
def contiguous_heap() -> Generator[None]:
    """Let what is imported meanwhile lie in one piece of memory, as large pages have to.

    The interpreter takes memory for small objects an arena at a time, and the libraries that are
    loaded in between would scatter the arenas. So many are taken at once before, with an object in
    each that keeps it; those that are not needed are given back.
    """
    objects = [bytes(_LARGEST_SMALL_OBJECT) for _ in range(_ARENAS * _OBJECTS_PER_ARENA)]
    one_in_each = objects[:: _OBJECTS_PER_ARENA // 2]
    objects.clear()
    try:
        yield
    finally:
        one_in_each.clear()


def gather() -> None:
    """Ask for large pages wherever this process has memory of its own for a whole one."""
    with suppress(OSError):
        with open("/proc/self/maps") as lines:
            text = lines.read()
        for address in whole_large_pages(text):
            # Some may be refused, such as memory that was never used.
            with suppress(OSError):
                libc.collapse_memory(address, _LARGE)


def whole_large_pages(maps: str) -> Iterator[int]:
    """Where large pages could begin, given the text of `/proc/PID/maps`."""
    for line in maps.splitlines():
        addresses, access, _, _, _, *name = line.split()
        if access == _OWN_AND_WRITABLE and name in ([], [_HEAP]):
            start, end = (int(address, 16) for address in addresses.split("-"))
            yield from range(-(-start // _LARGE) * _LARGE, end - _LARGE + 1, _LARGE)
