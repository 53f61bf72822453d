"""The benchmark finds waiting sandboxes among all processes and adds up what they hold."""

from dataclasses import replace

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

OURS, ZYGOTES = "pid:[1]", "pid:[2]"


def outside(parent: int) -> Process:
    return Process(parent=parent, levels=1, namespace=OURS)


def zygote(parent: int) -> Process:
    return Process(parent=parent, levels=2, namespace=ZYGOTES)


def inside(parent: int, cell: str) -> Process:
    return Process(parent=parent, levels=3, namespace=cell)


# Two zygotes below a warden, the second forked off the first. One cell is the bare zygote's own,
# two have a PID 1 from the bare zygote and a worker from the laden one, one has no worker yet.
SUPERVISOR, WARDEN, BARE_ZYGOTE, STEWARD, LADEN_ZYGOTE = 10, 20, 30, 31, 32
FAMILY = {
    1: outside(0),
    SUPERVISOR: outside(1),
    WARDEN: outside(SUPERVISOR),
    BARE_ZYGOTE: zygote(WARDEN),
    STEWARD: zygote(BARE_ZYGOTE),
    LADEN_ZYGOTE: zygote(BARE_ZYGOTE),
    40: inside(BARE_ZYGOTE, "pid:[40]"),
    41: inside(40, "pid:[40]"),
    50: inside(BARE_ZYGOTE, "pid:[50]"),
    51: inside(LADEN_ZYGOTE, "pid:[50]"),
    60: inside(BARE_ZYGOTE, "pid:[60]"),
    61: inside(LADEN_ZYGOTE, "pid:[60]"),
    70: inside(BARE_ZYGOTE, "pid:[70]"),
    99: inside(1, "pid:[99]"),
}


def test_parent_and_nesting_come_from_the_status() -> None:
    assert parse_status(STATUS, "pid:[7]") == Process(parent=800, levels=3, namespace="pid:[7]")


def test_private_memory_is_what_nobody_else_has_clean_or_dirty() -> None:
    held = parse_rollup(ROLLUP)

    assert (held.private_mb, held.proportional_mb) == (2.0, 5.0)


def test_descendants_are_found_at_any_depth() -> None:
    cells = {40, 41, 50, 51, 60, 61, 70}
    assert set(descendants(FAMILY, BARE_ZYGOTE)) == {STEWARD, LADEN_ZYGOTE, *cells}


def test_only_the_cells_of_the_most_laden_zygote_count() -> None:
    assert waiting_cells(FAMILY, SUPERVISOR) == [
        Cell(zygote=LADEN_ZYGOTE, pids=(50, 51)),
        Cell(zygote=LADEN_ZYGOTE, pids=(60, 61)),
    ]


def test_a_cell_of_the_only_zygote_is_pid_1_and_its_child() -> None:
    laden = {LADEN_ZYGOTE, 50, 51, 60, 61, 70}
    alone = {pid: process for pid, process in FAMILY.items() if pid not in laden}

    assert waiting_cells(alone, SUPERVISOR) == [Cell(zygote=BARE_ZYGOTE, pids=(40, 41))]


def test_a_supervisor_in_a_container_finds_its_cells_too() -> None:
    nested = {pid: replace(process, levels=process.levels + 1) for pid, process in FAMILY.items()}

    assert waiting_cells(nested, SUPERVISOR) == waiting_cells(FAMILY, SUPERVISOR)


def test_without_namespaces_there_is_nothing_to_tell_apart() -> None:
    flat = {pid: outside(process.parent) for pid, process in FAMILY.items()}

    assert waiting_cells(flat, SUPERVISOR) == []


@pytest.mark.parametrize(
    ("pid", "line"),
    [(WARDEN, [WARDEN]), (LADEN_ZYGOTE, [LADEN_ZYGOTE, BARE_ZYGOTE, WARDEN])],
)
def test_the_parents_of_a_cell_end_below_the_supervisor(pid: int, line: list[int]) -> None:
    assert ancestors(FAMILY, pid, SUPERVISOR) == line
