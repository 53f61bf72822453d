"""Attacks on memory, time and disk space.

Attackers take memory through every kind of object, run without end, and let files grow.
"""

from dataclasses import replace
from functools import partial

from assay.contracts.execution import Isolation, Reason
from assay.selftest.programs import describe, python, run_alone
from assay.selftest.security_tests.attack import (
    TIGHT,
    AttackConfig,
    AttackContext,
    Finding,
    build_attack,
)
from assay.selftest.security_tests.probe import build_greed

_MEMORY_CONFIG = AttackConfig(group="resources").ending(Reason.OUT_OF_MEMORY)
_MEMORY_OR_DISK = _MEMORY_CONFIG.ending(Reason.DISK_FULL)

_OF_THE_KERNEL = _MEMORY_CONFIG.within(
    replace(TIGHT, wall_s=30.0, cpu_s=30.0)
).against_the_hosts_kernel()
_FILES_IN_MEMORY = replace(
    _MEMORY_OR_DISK.within(replace(TIGHT, disk_mb=100)).against_the_hosts_kernel(),
    needs=Isolation.ISOLATED,
)
"""A weaker sandbox has its files on the host's disk, and they use no memory."""

MEMORY = (
    build_greed(
        "one_process_cannot_take_all_memory",
        """
def take():
    kept = [bytearray(b"x") * (1 << 20) for _ in range(AMOUNT)]
    return len(kept)
""",
        much=1024,
        little=8,
        config=_MEMORY_CONFIG,
    ),
    build_greed(
        "catching_memory_errors_does_not_give_more_memory",
        """
def take():
    kept = []
    for _ in range(20_000):
        try:
            kept.append(bytearray(b"x") * (1 << 20))
        except MemoryError:
            pass
        if len(kept) >= AMOUNT:
            return len(kept)
""",
        much=1024,
        little=8,
        config=_MEMORY_CONFIG,
    ),
    build_greed(
        "many_processes_cannot_take_all_memory",
        """
import select
def take():
    ready, tell = os.pipe()
    for _ in range(8):
        if os.fork() == 0:
            kept = bytearray(b"x") * (AMOUNT << 17)
            os.write(tell, b".")
            os.read(os.pipe()[0], 1)
    os.close(tell)
    told = 0
    while told < 8 and select.select([ready], [], [], 3)[0] and os.read(ready, 1):
        told += 1
    return told == 8
""",
        much=1024,
        little=8,
        config=_MEMORY_CONFIG.ending(Reason.TIMED_OUT),
    ),
    build_greed(
        "a_process_that_hides_cannot_take_all_memory",
        """
import ctypes, time
def take():
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # now only root may look into it
    kept = [bytearray(b"x") * (1 << 20) for _ in range(AMOUNT)]
    time.sleep(0.3)  # a watch may take a moment to see it
    return len(kept)
""",
        much=1024,
        little=8,
        config=_MEMORY_CONFIG,
    ),
    build_greed(
        "shared_mappings_cannot_take_all_memory",
        """
import mmap
def take():
    kept = mmap.mmap(-1, AMOUNT << 20)
    for offset in range(0, AMOUNT << 20, 4096):
        kept[offset] = 1
    return len(kept)
""",
        much=1024,
        little=8,
        config=_MEMORY_CONFIG,
    ),
    build_greed(
        "huge_pages_cannot_take_all_memory",
        """
import mmap
def take():
    kept = mmap.mmap(-1, AMOUNT << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        kept.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass
    for offset in range(0, AMOUNT << 20, 4096):
        kept[offset] = 1
    return len(kept)
""",
        much=1024,
        little=8,
        config=_MEMORY_CONFIG,
    ),
    build_greed(
        "files_in_memory_cannot_take_all_memory",
        """
def take():
    if AMOUNT < 100 and not hasattr(os, "memfd_create"):
        return "control"
    try:
        file = os.memfd_create("kept")
    except OSError:
        if AMOUNT < 100:  # refused altogether, which is as good
            return "control"
        raise
    for _ in range(AMOUNT):
        os.write(file, bytes(1 << 20))
    return AMOUNT
""",
        much=1024,
        little=8,
        config=_MEMORY_CONFIG,
    ),
    build_greed(
        "shared_memory_files_cannot_take_all_memory",
        """
def take():
    try:
        file = open("/dev/shm/kept", "wb", buffering=0)
    except OSError:
        file = open("kept", "wb", buffering=0)  # what a program takes where there is no such place
    with file:
        for _ in range(AMOUNT):
            if file.write(bytes(1 << 20)) < 1 << 20:
                raise OSError("no more room")
    return AMOUNT
""",
        much=1024,
        little=2,
        config=_MEMORY_OR_DISK,
    ),
    build_greed(
        "system_v_memory_cannot_take_all_memory",
        """
import ctypes
def take():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(0, AMOUNT << 20, 0o1600)
    if segment < 0:
        if AMOUNT < 100:  # refused altogether, which is as good
            return "control"
        raise OSError(ctypes.get_errno(), "shmget")
    address = libc.shmat(segment, None, 0)
    libc.shmctl(segment, 0, None)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "shmat")
    ctypes.memset(address, 1, AMOUNT << 20)
    return AMOUNT
""",
        much=1024,
        little=8,
        config=_MEMORY_CONFIG,
    ),
    build_greed(
        "pipe_buffers_cannot_take_all_memory",
        """
import fcntl
def take():
    taken, kept = 0, []
    while taken < AMOUNT << 20:
        reader, writer = os.pipe()
        kept.append((reader, writer))
        try:
            fcntl.fcntl(writer, 1031, 1 << 20)  # as large as an ordinary user may make it
        except OSError:
            pass
        os.set_blocking(writer, False)
        before = taken
        try:
            while True:
                taken += os.write(writer, bytes(1 << 16))
        except BlockingIOError:
            pass
        if taken == before:
            raise OSError("no more room")
    return taken
""",
        much=512,
        little=1,
        config=_MEMORY_CONFIG.within(replace(TIGHT, open_files=2000)).against_the_hosts_kernel(),
    ),
    build_greed(
        "page_tables_cannot_take_all_memory",
        """
import mmap, time
def take():
    # Each page that is read here is the same one, full of zeros; each needs a table of its own.
    step, kept = 2 << 20, []
    for _ in range(AMOUNT):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
        kept.append(mmap.mmap(-1, 256 * step, flags=flags, prot=mmap.PROT_READ))
        for offset in range(0, 256 * step, step):
            kept[-1][offset]
    time.sleep(0.3)  # a watch may take a moment to see it
    return AMOUNT
""",
        much=256,
        little=4,
        config=_OF_THE_KERNEL,
    ),
    build_greed(
        "shared_memory_that_is_not_mapped_cannot_take_all_memory",
        """
import mmap, time
def take():
    kept = []
    for _ in range(AMOUNT >> 3):
        kept.append(mmap.mmap(-1, 8 << 20))
        for offset in range(0, 8 << 20, 4096):
            kept[-1][offset] = 1
        kept[-1].madvise(mmap.MADV_DONTNEED)  # it lives on until the mapping is gone
    time.sleep(0.3)  # a watch may take a moment to see it
    return AMOUNT
""",
        much=512,
        little=8,
        config=_OF_THE_KERNEL,
    ),
    build_greed(
        "files_and_memory_together_cannot_take_too_much",
        """
import time
def take():
    with open("kept", "wb", buffering=0) as file:
        for _ in range(AMOUNT):
            file.write(bytes(1 << 20))
    kept = [bytearray(b"x") * (1 << 20) for _ in range(AMOUNT)]
    time.sleep(0.3)  # a watch may take a moment to see it
    return len(kept)
""",
        much=90,
        little=8,
        config=_FILES_IN_MEMORY,
    ),
    build_greed(
        "shared_memory_files_and_memory_together_cannot_take_too_much",
        """
import time
def take():
    with open("/dev/shm/kept", "wb", buffering=0) as file:
        for _ in range(AMOUNT // 2):
            file.write(bytes(1 << 20))
    kept = [bytearray(b"x") * (1 << 20) for _ in range(AMOUNT)]
    time.sleep(0.3)  # a watch may take a moment to see it
    return len(kept)
""",
        much=100,
        little=8,
        config=_FILES_IN_MEMORY,
    ),
    build_greed(
        "a_decompression_bomb_cannot_take_all_memory",
        """
import zlib
def take():
    packer, packed = zlib.compressobj(1), b""
    for _ in range(AMOUNT):
        packed += packer.compress(bytes(1 << 20))
    return len(zlib.decompress(packed + packer.flush())) >> 20
""",
        much=300,
        little=4,
        config=_MEMORY_CONFIG,
    ),
    build_greed(
        "deep_recursion_is_only_a_crash",
        """
import sys
def take():
    sys.setrecursionlimit(AMOUNT * 10)
    def dive(depth):
        return depth if depth >= AMOUNT else next(map(dive, (depth + 1,)))
    return dive(0)
""",
        much=3_000_000,
        little=50,
        config=_MEMORY_CONFIG.ending(Reason.SIGNALLED, Reason.CPU_TIME, Reason.TIMED_OUT),
    ),
)

_TIMED = AttackConfig(group="resources", limits=replace(TIGHT, wall_s=1.5)).ending(Reason.TIMED_OUT)
_METERED = AttackConfig(group="resources", limits=replace(TIGHT, cpu_s=1.0, wall_s=30.0)).ending(
    Reason.CPU_TIME
)
_ROOMY = AttackConfig(group="resources").ending(Reason.DISK_FULL, Reason.OUT_OF_MEMORY)

TIME = (
    build_greed(
        "sleeping_forever_is_ended",
        """
import time
def take():
    time.sleep(AMOUNT)
    return AMOUNT
""",
        much=600,
        little=1,
        config=_TIMED,
    ),
    build_greed(
        "ignoring_every_signal_does_not_help",
        """
import signal, time
def take():
    for number in set(signal.valid_signals()) - {9, 19}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(AMOUNT)
    return AMOUNT
""",
        much=600,
        little=1,
        config=_TIMED,
    ),
    build_greed(
        "waiting_for_a_lock_forever_is_ended",
        """
import fcntl
def take():
    first, second = open("lock", "w"), open("lock", "w")
    if AMOUNT > 1:
        fcntl.flock(first, fcntl.LOCK_EX)
    fcntl.flock(second, fcntl.LOCK_EX)
    return AMOUNT
""",
        much=2,
        little=1,
        config=_TIMED,
    ),
    build_greed(
        "processor_time_is_ended_though_its_signal_is_ignored",
        """
import signal, time
def take():
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    begin = time.process_time()
    while time.process_time() < begin + AMOUNT / 10:
        pass
    return AMOUNT
""",
        much=50,
        little=1,
        config=_METERED,
    ),
    build_greed(
        "processor_time_of_a_relay_of_processes_is_ended",
        """
import time
def take():
    for _ in range(AMOUNT):
        if os.fork() == 0:
            while time.process_time() < 0.3:
                pass
            os._exit(0)
        os.wait()
    return AMOUNT
""",
        much=20,
        little=1,
        config=_METERED,
    ),
    build_greed(
        "processor_time_of_orphans_is_ended",
        """
import time
def take():
    reader, writer = os.pipe()
    for _ in range(4):
        if os.fork() == 0:
            if os.fork():
                os._exit(0)
            os.setsid()
            while time.process_time() < AMOUNT / 100:
                pass
            os.write(writer, b".")
            os._exit(0)
        os.wait()
    os.close(writer)
    return len(os.read(reader, 1) + os.read(reader, 1) + os.read(reader, 1)) == 3
""",
        much=300,
        little=1,
        config=_METERED,
    ),
    build_greed(
        "a_huge_calculation_is_ended",
        """
def take():
    return (7 ** (10 ** AMOUNT)).bit_length()
""",
        much=8,
        little=2,
        config=_METERED,
    ),
    build_greed(
        "a_catastrophic_pattern_is_ended",
        """
import re
def take():
    return not re.match("(a+)+$", "a" * AMOUNT + "b")
""",
        much=60,
        little=3,
        config=_METERED,
    ),
)

_HIDING_PLACES = {
    "a_folder_that_nobody_may_list_cannot_fill_the_disk": """
    global HIDDEN
    HIDDEN = "closed/"
    os.mkdir("closed")
    os.chmod("closed", 0o333)
""",
    "a_folder_deeper_than_any_path_cannot_fill_the_disk": """
    global HIDDEN
    HIDDEN = ""
    for _ in range(50):
        os.mkdir("n" * 200)
        os.chdir("n" * 200)
""",
}

SPACE = (
    build_greed(
        "one_file_cannot_fill_the_disk",
        """
def take():
    with open("kept", "wb", buffering=0) as file:
        for _ in range(AMOUNT):
            if file.write(bytes(1 << 20)) < 1 << 20:
                raise OSError("no more room")
    return AMOUNT
""",
        much=200,
        little=2,
        config=_ROOMY,
    ),
    build_greed(
        "reserved_room_cannot_fill_the_disk",
        """
def take():
    with open("kept", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, AMOUNT << 20)
    return AMOUNT
""",
        much=200,
        little=2,
        config=_ROOMY,
    ),
    build_greed(
        "a_mapped_sparse_file_cannot_fill_the_disk",
        """
import mmap
def take():
    with open("kept", "wb+") as file:
        file.truncate(AMOUNT << 20)
        kept = mmap.mmap(file.fileno(), AMOUNT << 20)
        for offset in range(0, AMOUNT << 20, 4096):
            kept[offset] = 1
    return AMOUNT
""",
        much=200,
        little=2,
        config=_ROOMY.ending(Reason.SIGNALLED),
    ),
    build_greed(
        "deleted_open_files_cannot_fill_the_disk",
        """
def take():
    kept = []
    for number in range(AMOUNT):
        kept.append(open(f"kept-{number}", "wb", buffering=0))
        os.unlink(f"kept-{number}")
        if kept[-1].write(bytes(8 << 20)) < 8 << 20:
            raise OSError("no more room")
    return AMOUNT
""",
        much=25,
        little=1,
        config=_ROOMY,
    ),
    build_greed(
        "temporary_files_cannot_fill_the_disk",
        """
import tempfile
def take():
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(AMOUNT):
            if file.write(bytes(1 << 20)) < 1 << 20:
                raise OSError("no more room")
    return AMOUNT
""",
        much=200,
        little=2,
        config=_ROOMY,
    ),
    *(
        build_greed(
            name,
            f"""
import time
def take():
    {hide}
    for number in range(AMOUNT):
        with open(f"{{HIDDEN}}kept-{{number}}", "wb", buffering=0) as file:
            if file.write(bytes(8 << 20)) < 8 << 20:
                raise OSError("no more room")
    time.sleep(0.5)  # a watch may take a moment to see it
    return AMOUNT
""",
            much=25,
            little=1,
            config=_ROOMY,
        )
        for name, hide in _HIDING_PLACES.items()
    ),
)


async def _is_blamed_on_time(context: AttackContext, *, source: str) -> Finding:
    limits = replace(TIGHT, cpu_s=1.0, wall_s=30.0)
    result = await run_alone(context.backend, python(source), limits)
    blamed = result.reason is Reason.CPU_TIME or "cpu_s" in result.limits_hit
    assert result.reason is not Reason.COMPLETED, f"nothing was tested: {describe(result)}"
    return Finding(breached=blamed, evidence=describe(result))


SIGNAL_OF_TIME = build_attack(
    "a_program_that_sends_itself_the_signal_of_processor_time_is_not_ended_for_that",
    attack=partial(
        _is_blamed_on_time,
        source="""
            import os, signal
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGXCPU)
        """,
    ),
    control=partial(_is_blamed_on_time, source="while True: pass"),
    config=AttackConfig(group="resources"),
)
