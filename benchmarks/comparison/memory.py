"""Memory of idle sandboxes, read from outside: private and shared pages of each process."""

import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from assay.contracts.execution import Isolation
from assay.settings.load import SandboxSettings
from benchmarks.comparison.measurements import Memory
from benchmarks.comparison.runners import open_native
from benchmarks.comparison.targets import BARE, POOL

COPIES: Final = 8
_STAGE: Final = ("numpy", "pandas")
_PROCESSES_PER_CELL: Final = 2
_FILLED_WITHIN_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.1
_SETTLE_S: Final = 1.0
_NAMESPACES_BELOW: Final = 2
_IDLE: Final = "import sys, numpy, pandas; print(flush=True); sys.stdin.read()"


class CellsMissingError(Exception):
    """The pool did not fill, so there is nothing to measure; the message has its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Facts about a process from /proc."""

    parent: int
    levels: int
    """Number of nested pid namespaces in which it has a number, including this one."""
    namespace: str
    """The innermost of them, by its kernel name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Processes of one idle sandbox, and the zygote that its worker was forked from."""

    zygote: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Total memory of several processes."""

    private_mb: float
    proportional_mb: float


def parse_status(text: str, namespace: str) -> Process:
    lines = (line.partition(":") for line in text.splitlines())
    fields = {name: value for name, _, value in lines}
    levels = len(fields["NSpid"].split())
    return Process(parent=int(fields["PPid"]), levels=levels, namespace=namespace)


def parse_rollup(text: str) -> Held:
    kilobytes: dict[str, int] = {}
    for line in text.splitlines()[1:]:
        name, _, value = line.partition(":")
        kilobytes[name] = int(value.split()[0])
    private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    return Held(private_mb=private / 1024, proportional_mb=kilobytes["Pss"] / 1024)


def descendants(processes: Mapping[int, Process], ancestor: int) -> list[int]:
    found = [ancestor]
    for pid in found:
        found.extend(child for child, process in processes.items() if process.parent == pid)
    return found[1:]


def waiting_cells(processes: Mapping[int, Process], supervisor: int) -> list[Cell]:
    """Find the jails of the zygote with the most modules below a supervisor.

    The zygotes share a pid namespace, and each jail has another one below it. In a jail of a zygote
    with libraries, the worker is that zygote's child and PID 1 the bare zygote's, so only the
    namespace groups them. Each zygote is forked from the one with fewer modules, so the last in the
    chain has all of them.
    """
    inside = processes[supervisor].levels + _NAMESPACES_BELOW
    members: dict[str, list[int]] = defaultdict(list)
    for pid in descendants(processes, supervisor):
        if processes[pid].levels == inside:
            members[processes[pid].namespace].append(pid)
    depths = {
        parent: len(ancestors(processes, parent, supervisor))
        for pids in members.values()
        for parent in (processes[pid].parent for pid in pids)
        if processes[parent].levels < inside
    }
    if not depths:
        return []
    last = max(depths, key=lambda zygote: depths[zygote])
    return [
        Cell(zygote=last, pids=tuple(sorted(pids)))
        for pids in members.values()
        if any(processes[pid].parent == last for pid in pids)
    ]


def ancestors(processes: Mapping[int, Process], pid: int, supervisor: int) -> list[int]:
    """Return a process and its ancestors, up to the child of the supervisor."""
    found: list[int] = []
    while pid != supervisor:
        found.append(pid)
        pid = processes[pid].parent
    return found


def read_processes() -> dict[int, Process]:
    found: dict[int, Process] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # A process may exit before it is read.
        with suppress(OSError, KeyError):
            namespace = str((folder / "ns/pid").readlink())
            found[int(folder.name)] = parse_status((folder / "status").read_text(), namespace)
    return found


def held_by(pids: Sequence[int]) -> Held:
    parts = [parse_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text()) for pid in pids]
    return Held(
        private_mb=sum(part.private_mb for part in parts),
        proportional_mb=sum(part.proportional_mb for part in parts),
    )


def _average(runner: str, cells: Sequence[Held], parents: Held) -> Memory:
    proportional = statistics.median(cell.proportional_mb for cell in cells)
    return Memory(
        runner=runner,
        copies=len(cells),
        private_mb=statistics.median(cell.private_mb for cell in cells),
        proportional_mb=proportional,
        with_parents_mb=proportional + parents.proportional_mb / len(cells),
    )


async def measure_native() -> Memory | None:
    """Return None if jails cannot be distinguished: without pid namespaces.

    Raises:
        CellsMissingError: If the sandboxes that should wait are not there in time.
    """
    settings = SandboxSettings(backend="native", pool_size=COPIES, preload=(_STAGE,))
    async with open_native(settings) as runner:
        if runner.isolation is not Isolation.ISOLATED:
            return None
        cells = await _wait_for_cells()
        parents = ancestors(read_processes(), cells[0].zygote, os.getpid())
        return _average(POOL, [held_by(cell.pids) for cell in cells], held_by(parents))


async def _wait_for_cells() -> list[Cell]:
    """Return the jails once their number is right and all of them are idle."""
    cells: list[Cell] = []
    with anyio.move_on_after(_FILLED_WITHIN_S):
        while len(cells) < COPIES:
            await anyio.sleep(_LOOK_EVERY_S)
            cells = _complete_cells()
        await anyio.sleep(_SETTLE_S)
        cells = _complete_cells()
    if len(cells) < COPIES:
        raise CellsMissingError(
            f"{len(cells)} of {COPIES} sandboxes with {', '.join(_STAGE)} were found waiting "
            f"within {_FILLED_WITHIN_S:g} s; `assay doctor` says what this machine can do"
        )
    return cells


def _complete_cells() -> list[Cell]:
    cells = waiting_cells(read_processes(), os.getpid())
    return [cell for cell in cells if len(cell.pids) == _PROCESSES_PER_CELL]


async def measure_bare() -> Memory:
    return await anyio.to_thread.run_sync(_measure_bare)


def _measure_bare() -> Memory:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _IDLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            for _ in range(COPIES)
        ]
        for process in processes:
            if process.stdout is not None:
                process.stdout.readline()
        nobody = Held(private_mb=0, proportional_mb=0)
        return _average(BARE, [held_by([process.pid]) for process in processes], nobody)
