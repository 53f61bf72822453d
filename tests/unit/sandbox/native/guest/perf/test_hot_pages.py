"""Which memory of a process is worth copying while it forks, from what the kernel says of it."""

import mmap

import pytest

from assay.sandbox.native.guest.perf import heap_ranges, merge_ranges, whole_large_pages

PAGE = mmap.PAGESIZE
LARGE = 2 << 20
MAPS = """\
00400000-00500000 r-xp 00000000 fe:00 1                    /usr/bin/python3
00500000-00502000 rw-p 00100000 fe:00 1                    /usr/bin/python3
00a00000-01000000 rw-p 00000000 00:00 0                    [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 rw-s 00000000 00:01 5            /memfd:shared
7f0002000000-7f0002400000 ---p 00000000 00:00 0
"""


def test_what_a_child_may_write_to_is_writable_and_its_own() -> None:
    assert list(heap_ranges(MAPS)) == [
        (0x500000, 0x502000),
        (0xA00000, 0x1000000),
        (0x7F0000000000, 0x7F0000400000),
    ]


@pytest.mark.parametrize(
    ("pages", "ranges"),
    [
        ([], []),
        ([5], [(5, 1)]),
        ([3, 1, 2, 7], [(1, 3), (7, 1)]),
        ([1, 3, 5], [(1, 1), (3, 1), (5, 1)]),
    ],
)
def test_neighbouring_pages_become_one_range(
    pages: list[int], ranges: list[tuple[int, int]]
) -> None:
    found = merge_ranges(number * PAGE for number in pages)

    assert found == [(start * PAGE, length * PAGE) for start, length in ranges]


def test_large_pages_lie_wholly_within_memory_of_no_file() -> None:
    assert list(whole_large_pages(MAPS)) == [
        *range(0xA00000, 0x1000000, LARGE),
        *range(0x7F0000000000, 0x7F0000400000, LARGE),
    ]


@pytest.mark.parametrize("text", ["", "00a01000-00d00000 rw-p 00000000 00:00 0\n"])
def test_memory_too_small_or_askew_for_a_large_page_is_left_alone(text: str) -> None:
    assert list(whole_large_pages(text)) == []
