import ctypes
import gc
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from assay.sandbox.native.host import memory_use, registry, usage_monitor
from assay.sandbox.native.host.jail import Jail, close_all
from assay.sandbox.native.host.usage_monitor import (
    ContainedWatch,
    GroupAndDiskWatch,
    GroupWatch,
    ProcessWatch,
    Usage,
    count_processes,
    process_tree,
)
from assay.sandbox.native.kernel import libc, syscalls
from assay.sandbox.native.kernel.cgroups import ControlGroup
from tests.support.cells import cell_of
from tests.support.children import a_child, a_zombie, have_a_child
from tests.support.eventually import eventually
from tests.support.requirements import require

MEGABYTE = 1 << 20
KEPT: list[mmap.mmap] = []
SOCKETS: list[tuple[socket.socket, socket.socket]] = []
"""What a child holds on to while it is looked at."""


@pytest.fixture(autouse=True)
def no_collections() -> Generator[None]:
    """Keep the garbage collector from writing to pages that children share with this process."""
    gc.disable()
    yield
    gc.enable()


@contextmanager
def a_cell(*, program: Callable[[], object] = lambda: None) -> Generator[Jail]:
    """A cell whose PID 1 has one child, the program, which has done something and waits."""
    with ExitStack() as stack:
        with a_child(lambda: have_a_child(program)) as first:
            ended = os.pidfd_open(process_tree(first)[1])
            stack.callback(os.close, ended)
            cell = cell_of(os.pidfd_open(first))
            stack.callback(cell.close)
            yield cell
        # Until the program has exited, it shares pages with this process and so with the next test.
        assert select.select([ended], [], [], 60)[0]


def hold(megabytes: int) -> None:
    """Take memory from the kernel, and not what this process has left over."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    KEPT.append(mmap.mmap(-1, megabytes * MEGABYTE, flags=private))
    KEPT[-1].write(b"x" * (megabytes * MEGABYTE))


def compute() -> None:
    begin = time.process_time()
    while time.process_time() - begin < 0.3:
        pass


def start_threads(number: int) -> None:
    for _ in range(number):
        threading.Thread(target=threading.Event().wait, daemon=True).start()


@contextmanager
def a_cell_that_waits(act: Callable[[], object]) -> Generator[tuple[Jail, Callable[[], None]]]:
    """A cell, and what has its program do something and returns when it is done."""
    reader, writer = os.pipe()

    def act_when_told(*_: object) -> None:
        act()
        os.write(writer, b"+")

    with a_cell(program=lambda: signal.signal(signal.SIGUSR1, act_when_told)) as cell:

        def tell() -> None:
            os.kill(process_tree(cell.host_pids()[0])[1], signal.SIGUSR1)
            os.read(reader, 1)

        yield cell, tell
    close_all((reader, writer))


def test_memory_that_the_program_takes_is_seen() -> None:
    with a_cell_that_waits(lambda: hold(40)) as (cell, tell):
        looking = ProcessWatch(cell, 20 * MEGABYTE)
        before = looking.look()
        tell()
        after = looking.look()

    assert before.memory_bytes < 20 * MEGABYTE
    assert 35 * MEGABYTE < after.memory_bytes < 100 * MEGABYTE


def test_what_was_held_before_the_program_began_is_not_the_programs() -> None:
    with a_cell(program=lambda: hold(40)) as cell:
        # The watch begins now: these 40 MB were inherited, so far as it can know.
        sample = ProcessWatch(cell, 20 * MEGABYTE).look()

    assert sample.memory_bytes < 20 * MEGABYTE


def fill_page_tables(megabytes: int) -> None:
    """Read one page, always that of zeros, in each piece that a page table is for."""
    flags, piece = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, 2 * MEGABYTE
    KEPT.append(mmap.mmap(-1, megabytes * 256 * piece, flags=flags, prot=mmap.PROT_READ))
    for offset in range(0, megabytes * 256 * piece, piece):
        KEPT[-1][offset]


def share_unmapped(megabytes: int) -> None:
    KEPT.append(mmap.mmap(-1, megabytes * MEGABYTE))
    KEPT[-1].write(b"x" * (megabytes * MEGABYTE))
    KEPT[-1].madvise(mmap.MADV_DONTNEED)


def test_page_tables_are_seen() -> None:
    with a_cell_that_waits(lambda: fill_page_tables(40)) as (cell, tell):
        looking = ProcessWatch(cell, 20 * MEGABYTE)
        tell()
        sample = looking.look()

    assert sample.memory_bytes > 35 * MEGABYTE


@pytest.mark.parametrize(
    ("take", "charged_mb"), [(lambda: share_unmapped(40), 40), (lambda: hold(1), 0)]
)
def test_shared_memory_that_is_not_mapped_is_charged_to_programs_that_have_some(
    monkeypatch: pytest.MonkeyPatch, take: Callable[[], None], charged_mb: int
) -> None:
    # What all processes of the machine share: others would come and go in a test.
    shared_mb = iter((100, *[140] * 9))
    monkeypatch.setattr(memory_use, "_shared_bytes", lambda: next(shared_mb) * MEGABYTE)
    with a_cell_that_waits(take) as (cell, tell):
        looking = ProcessWatch(cell, 20 * MEGABYTE)
        tell()
        sample = looking.look()

    assert charged_mb * MEGABYTE <= sample.memory_bytes < (charged_mb + 10) * MEGABYTE


def fill_sockets(megabytes: int) -> None:
    filled = 0
    while filled < megabytes * MEGABYTE:
        pair = socket.socketpair()
        SOCKETS.append(pair)
        pair[0].settimeout(0)
        with suppress(BlockingIOError):
            while True:
                filled += pair[0].send(bytes(1 << 15))


def test_buffers_of_sockets_are_known_not_to_be_seen() -> None:
    with a_cell_that_waits(lambda: fill_sockets(40)) as (cell, tell):
        looking = ProcessWatch(cell, 20 * MEGABYTE)
        tell()
        sample = looking.look()

    assert sample.memory_bytes < 20 * MEGABYTE, "SECURITY.md says otherwise"


def test_files_in_memory_count_once_whether_they_are_mapped_or_not(
    folder_in_memory: Path,
) -> None:
    def write() -> None:
        for name in ("plain", "mapped"):
            with (folder_in_memory / name).open("wb+", buffering=0) as file:
                os.posix_fallocate(file.fileno(), 0, 20 * MEGABYTE)
                KEPT.append(mmap.mmap(file.fileno(), 20 * MEGABYTE))
        KEPT.pop(-2).close()
        for offset in range(0, 20 * MEGABYTE, mmap.PAGESIZE):
            KEPT[-1][offset] = 1

    workspace = os.open(folder_in_memory, os.O_RDONLY)
    with a_cell_that_waits(write) as (cell, tell):
        looking = ProcessWatch(cell, 30 * MEGABYTE, files=workspace)
        tell()
        sample = looking.look()
    os.close(workspace)

    assert 38 * MEGABYTE < sample.memory_bytes < 55 * MEGABYTE


@pytest.fixture
def folder_in_memory(tmp_path: Path) -> Generator[Path]:
    """A tmpfs that nobody else writes to."""
    try:
        libc.mount_tmpfs(str(tmp_path), size_bytes=64 * MEGABYTE, inodes=64, mode=0o755)
    except OSError as error:
        require("root", available=False, why=f"a tmpfs cannot be mounted: {error}")
    try:
        yield tmp_path
    finally:
        libc.unmount(str(tmp_path))


def have_children(number: int, prepare: Callable[[], object]) -> None:
    for _ in range(number):
        have_a_child(prepare)


def contained_memory(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], *, grown_mb: int
) -> float:
    """What is counted in gVisor for something that a program does, in MB."""
    with a_cell_that_waits(act) as (cell, tell):
        monkeypatch.setattr(usage_monitor, "_anonymous_bytes", lambda: 100 * MEGABYTE)
        contained = ContainedWatch(cell, 20 * MEGABYTE)
        tell()
        monkeypatch.setattr(usage_monitor, "_anonymous_bytes", lambda: (100 + grown_mb) * MEGABYTE)
        return contained.look().memory_bytes / MEGABYTE


def test_in_gvisor_copies_of_the_program_pay_for_what_they_take_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold(20)  # every process below begins with it
    try:
        idle = contained_memory(monkeypatch, lambda: have_children(5, int), grown_mb=1000)
        busy = contained_memory(
            monkeypatch, lambda: have_children(5, lambda: hold(10)), grown_mb=1000
        )
    finally:
        KEPT.clear()

    assert idle < 20
    assert 50 <= busy < 130


def test_in_gvisor_another_program_pays_for_all_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, tell = os.pipe()
    source = f"""
import os, signal
kept = bytearray(b"x" * {30 * MEGABYTE})
os.write({tell}, b"+")
signal.pause()
"""

    def become_another() -> None:
        if os.fork() == 0:
            libc.die_with_parent(signal.SIGKILL)
            os.set_inheritable(tell, True)
            os.execv(sys.executable, [sys.executable, "-c", source])  # noqa: S606
        os.read(ready, 1)

    hold(30)
    try:
        counted = contained_memory(monkeypatch, become_another, grown_mb=1000)
    finally:
        KEPT.clear()
        close_all((ready, tell))

    assert counted > 30


def test_in_gvisor_nobody_has_taken_more_than_all_hold_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def share() -> None:
        hold(40)
        have_children(3, int)

    assert contained_memory(monkeypatch, share, grown_mb=45) == 45


def test_processor_time_of_the_program_is_seen() -> None:
    with a_cell(program=compute) as cell:
        sample = ProcessWatch(cell, 1024 * MEGABYTE).look()

    assert 0.25 < sample.cpu_s < 30


def test_threads_count_as_processes() -> None:
    with a_cell(program=lambda: start_threads(3)) as cell:
        sample = ProcessWatch(cell, 1024 * MEGABYTE).look()

    assert sample.processes == 4


def test_a_crowd_is_seen_before_anything_else_is_looked_at() -> None:
    with a_cell(program=lambda: (start_threads(3), hold(40))) as cell:
        watch = ProcessWatch(cell, MEGABYTE, processes=2)
        sample = watch.look()

    assert sample.processes == 4
    assert sample.memory_bytes == 0


def test_grandchildren_count_as_processes() -> None:
    with a_cell(program=lambda: have_a_child(have_a_child)) as cell:
        sample = ProcessWatch(cell, 1024 * MEGABYTE).look()

    assert sample.processes == 3


def test_what_the_dead_have_used_is_remembered_while_others_live() -> None:
    def have_a_busy_child() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that nothing of it stays in `/proc`
        have_a_child(compute)

    with a_cell(program=have_a_busy_child) as cell:
        watch = ProcessWatch(cell, 1024 * MEGABYTE)
        before = watch.look()
        end(process_tree(cell.host_pids()[0])[-1])

        after = watch.look()

    assert before.cpu_s > 0.25
    assert after.cpu_s >= before.cpu_s
    assert after.memory_bytes >= before.memory_bytes
    assert after.processes == before.processes == 2


def test_the_dead_that_nobody_but_pid_1_can_bury_do_not_count() -> None:
    def adopt_the_dead() -> None:
        libc.adopt_orphans()
        have_a_child()
        for _ in range(5):
            a_zombie()

    with a_child(adopt_the_dead) as first:
        cell = cell_of(os.pidfd_open(first))
        sample = ProcessWatch(cell, 1024 * MEGABYTE).look()
        found = len(process_tree(first))
        cell.close()

    assert found == 7
    assert sample.processes == 1


def test_the_dead_that_the_program_does_not_bury_count() -> None:
    with a_cell(program=a_zombie) as cell:
        sample = ProcessWatch(cell, 1024 * MEGABYTE).look()

    assert sample.processes == 2


async def test_threads_that_outlive_the_first_one_of_their_process_count() -> None:
    def leave_threads_behind() -> None:
        if os.fork() == 0:
            start_threads(3)
            # Ends this thread, and not the others.
            ctypes.CDLL(None).syscall(syscalls.table()["exit"], 0)

    with a_child(leave_threads_behind) as first:
        cell = cell_of(os.pidfd_open(first))
        watch = ProcessWatch(cell, 1024 * MEGABYTE)
        (child,) = process_tree(first)[1:]
        assert await eventually(lambda: registry.start_time(child) is None)
        sample = watch.look()
        cell.close()
        end(child)

    assert sample.processes == 4


def end(pid: int) -> None:
    """Kill a process that is not our child, and return when it is dead."""
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([descriptor], [], [], 10)
    os.close(descriptor)


def test_a_cell_that_is_gone_uses_nothing_and_can_be_killed_again() -> None:
    with a_child() as child:
        cell = cell_of(os.pidfd_open(child))

    sample = ProcessWatch(cell, MEGABYTE).look()
    cell.kill()

    assert cell.host_pids() == []
    assert sample == Usage()
    cell.close()


def test_the_pid_of_a_living_cell_is_known() -> None:
    with a_child() as child:
        cell = cell_of(os.pidfd_open(child))

        assert cell.host_pids() == [child]
        cell.close()


class BusyGroup(ControlGroup):
    """A control group that has counted something."""

    def cpu_s(self) -> float:
        return 1.5


def test_where_a_group_counts_only_processor_time_is_looked_at() -> None:
    with a_child() as child:
        cell = cell_of(os.pidfd_open(child), BusyGroup())

        sample = GroupWatch(cell).look()

        assert sample == Usage(cpu_s=1.5)
        cell.close()


def test_where_a_group_counts_and_the_box_is_a_folder_only_the_disk_is_looked_at_too(
    tmp_path: Path,
) -> None:
    def hold_memory_and_a_removed_file() -> None:
        hold(30)
        removed = tmp_path / "removed"
        descriptor = os.open(removed, os.O_CREAT | os.O_RDWR)
        os.write(descriptor, b"x" * MEGABYTE)
        removed.unlink()

    (tmp_path / "kept").write_bytes(b"x" * MEGABYTE)
    with a_child(lambda: have_a_child(hold_memory_and_a_removed_file)) as child:
        cell = cell_of(os.pidfd_open(child), BusyGroup())

        sample = GroupAndDiskWatch(cell, (tmp_path,)).look()

        assert 2 * MEGABYTE <= sample.disk_bytes < 3 * MEGABYTE
        # Reading the memory of a process that is being killed delays that it is freed.
        assert sample == Usage(cpu_s=1.5, disk_bytes=sample.disk_bytes)
        cell.close()


def test_a_tree_begins_with_its_root_and_holds_every_generation() -> None:
    with a_child(lambda: have_a_child(have_a_child)) as first:
        tree = process_tree(first)

        assert tree[0] == first
        assert len(tree) == 3


def test_the_tree_of_a_process_that_is_gone_is_that_number_alone() -> None:
    with a_child() as child:
        pass

    assert process_tree(child) == [child]


def test_children_of_every_thread_are_found() -> None:
    def have_a_child_by_a_thread() -> None:
        done = threading.Event()

        def work() -> None:
            have_a_child()
            done.set()
            threading.Event().wait()

        threading.Thread(target=work, daemon=True).start()
        done.wait()

    with a_child(have_a_child_by_a_thread) as first:
        assert len(process_tree(first)) == 2


def test_a_user_has_at_least_the_processes_that_were_just_started() -> None:
    before = count_processes(os.getuid())

    with a_child(lambda: start_threads(2)):
        assert count_processes(os.getuid()) > 2
        assert count_processes(1_599_999_999) == 0

    assert before > 0
