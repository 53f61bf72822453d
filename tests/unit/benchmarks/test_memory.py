"""The benchmark finds waiting sandboxes among all processes and adds up what they hold."""

import pytest

from benchmarks.comparison.memory import (
    Cell,
    Process,
    ancestors,
    descendants,
    parse_rollup,
    parse_status,
    waiting_cells,
)

STATUS = "Name:\tpython3\nPid:\t812\nPPid:\t800\nNSpid:\t812\t9\t1\nThreads:\t1\n"
ROLLUP = """55d0c0a00000-7ffd6a9fe000 ---p 00000000 00:00 0                          [rollup]
Rss:               41000 kB
Pss:                5120 kB
Pss_Anon:           4000 kB
Private_Clean:       512 kB
Private_Dirty:      1536 kB
Private_Hugetlb:       0 kB
"""

# Two zygotes below a warden, the second forked off the first, with two cells and one cell.
SUPERVISOR, WARDEN, BARE_ZYGOTE, STEWARD, LADEN_ZYGOTE = 10, 20, 30, 31, 32
FAMILY = {
    1: Process(parent=0, levels=1),
    SUPERVISOR: Process(parent=1, levels=1),
    WARDEN: Process(parent=SUPERVISOR, levels=1),
    BARE_ZYGOTE: Process(parent=WARDEN, levels=2),
    STEWARD: Process(parent=BARE_ZYGOTE, levels=2),
    LADEN_ZYGOTE: Process(parent=BARE_ZYGOTE, levels=2),
    40: Process(parent=BARE_ZYGOTE, levels=3),
    41: Process(parent=40, levels=3),
    50: Process(parent=LADEN_ZYGOTE, levels=3),
    51: Process(parent=50, levels=3),
    60: Process(parent=LADEN_ZYGOTE, levels=3),
    61: Process(parent=60, levels=3),
    99: Process(parent=1, levels=3),
}


def test_parent_and_nesting_come_from_the_status() -> None:
    assert parse_status(STATUS) == Process(parent=800, levels=3)


def test_private_memory_is_what_nobody_else_has_clean_or_dirty() -> None:
    held = parse_rollup(ROLLUP)

    assert (held.private_mb, held.proportional_mb) == (2.0, 5.0)


def test_descendants_are_found_at_any_depth() -> None:
    assert set(descendants(FAMILY, BARE_ZYGOTE)) == {STEWARD, LADEN_ZYGOTE, 40, 41, 50, 51, 60, 61}


def test_only_the_cells_of_the_most_laden_zygote_count() -> None:
    assert waiting_cells(FAMILY, SUPERVISOR) == [
        Cell(zygote=LADEN_ZYGOTE, pids=(50, 51)),
        Cell(zygote=LADEN_ZYGOTE, pids=(60, 61)),
    ]


def test_a_supervisor_in_a_container_finds_its_cells_too() -> None:
    nested = {
        pid: Process(parent=process.parent, levels=process.levels + 1)
        for pid, process in FAMILY.items()
    }

    assert waiting_cells(nested, SUPERVISOR) == waiting_cells(FAMILY, SUPERVISOR)


def test_without_namespaces_there_is_nothing_to_tell_apart() -> None:
    flat = {pid: Process(parent=process.parent, levels=1) for pid, process in FAMILY.items()}

    assert waiting_cells(flat, SUPERVISOR) == []


@pytest.mark.parametrize(
    ("pid", "line"),
    [(WARDEN, [WARDEN]), (LADEN_ZYGOTE, [LADEN_ZYGOTE, BARE_ZYGOTE, WARDEN])],
)
def test_the_parents_of_a_cell_end_below_the_supervisor(pid: int, line: list[int]) -> None:
    assert ancestors(FAMILY, pid, SUPERVISOR) == line
