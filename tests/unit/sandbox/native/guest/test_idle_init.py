"""The program that PID 1 of a vacant cell becomes."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from assay.sandbox.native.guest import pid1
from assay.sandbox.native.guest.pid1 import MACHINES, Machine, program_for
from tests.support.eventually import eventually
from tests.support.requirements import require

_SOMEBODY = 65534


@pytest.fixture
def asleep() -> Generator[int]:
    """The pid of a process that has become the program and said so."""
    program = pid1.open_program()
    assert program is not None
    hears, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        if os.geteuid() == 0:
            os.setuid(_SOMEBODY)
        pid1.become_idle_init(program, tells)
    os.close(tells)
    try:
        assert os.read(hears, 2) == b"1"
        assert os.read(hears, 1) == b""
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(hears)
        os.close(program)


def test_it_says_that_it_is_there_and_holds_nothing_of_us(asleep: int) -> None:
    require("root", available=os.geteuid() == 0, why="only root looks into an undumpable process")
    folder = Path(f"/proc/{asleep}")

    assert {int(each.name) for each in (folder / "fd").iterdir()} <= {0, 1, 2}
    assert (folder / "cmdline").read_bytes() == b"init\0"
    assert (folder / "environ").read_bytes() == b""


def test_it_has_next_to_no_memory_of_its_own(asleep: int) -> None:
    require("root", available=os.geteuid() == 0, why="only root looks into an undumpable process")
    lines = Path(f"/proc/{asleep}/smaps_rollup").read_text().splitlines()

    held = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    assert held["Private_Clean"] + held["Private_Dirty"] <= 64


async def test_it_sleeps_and_sleeps_on_after_a_signal_it_does_not_mind(asleep: int) -> None:
    os.kill(asleep, signal.SIGCHLD)
    os.kill(asleep, signal.SIGWINCH)

    assert await eventually(lambda: _state(asleep) == "S")


def test_nobody_of_the_same_user_can_look_into_it(asleep: int) -> None:
    # What cannot be dumped belongs to root, whoever runs it.
    assert Path(f"/proc/{asleep}/mem").stat().st_uid == 0


def test_where_it_may_not_be_run_the_process_sleeps_as_it_is() -> None:
    nothing = os.open("/dev/null", os.O_RDONLY)
    hears, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        pid1.become_idle_init(nothing, tells)
    os.close(tells)
    try:
        assert os.read(hears, 2) == b"1"
        assert os.read(hears, 1) == b""
        ours = Path("/proc/self/cmdline").read_bytes()
        assert Path(f"/proc/{pid}/cmdline").read_bytes() == ours
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(hears)
        os.close(nothing)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
def test_the_program_is_one_that_the_kernel_loads(machine: Machine) -> None:
    program = program_for(machine)

    assert program.startswith(b"\x7fELF\x02\x01\x01")
    assert int.from_bytes(program[18:20], "little") == machine.elf
    start = int.from_bytes(program[24:32], "little") - 0x10000000
    assert 0 < start < len(program) < 4096


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
