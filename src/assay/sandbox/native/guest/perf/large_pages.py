"""Collapses the memory of a zygote into large pages after its imports.

A fork and an exit process memory page by page, and each execution pays for one of each. A large
page counts as one. This affects only speed: if the kernel refuses, the memory stays as it is.
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


def gather() -> None:
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
