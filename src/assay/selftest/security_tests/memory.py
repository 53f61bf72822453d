"""Attacks on memory, through every kind of object that takes memory."""

from dataclasses import replace

from assay.contracts.execution import Isolation, Reason
from assay.selftest.security_tests.attack import TIGHT, AttackConfig
from assay.selftest.security_tests.exhaustion import Greed

_TERMS = AttackConfig(group="resources").ending(Reason.OUT_OF_MEMORY)
_ROOMY = _TERMS.ending(Reason.DISK_FULL)

_OF_THE_KERNEL = _TERMS.within(replace(TIGHT, wall_s=30.0, cpu_s=30.0)).against_the_hosts_kernel()
_FILES_IN_MEMORY = replace(
    _ROOMY.within(replace(TIGHT, disk_mb=100)).against_the_hosts_kernel(), needs=Isolation.ISOLATED
)
"""A weaker sandbox has its files on the host's disk, and they use no memory."""

_GREEDS = (
    Greed(
        name="one_process_cannot_take_all_memory",
        take="""
def take():
    kept = [bytearray(b"x") * (1 << 20) for _ in range(AMOUNT)]
    return len(kept)
""",
        much=1024,
        little=8,
        terms=_TERMS,
    ),
    Greed(
        name="catching_memory_errors_does_not_give_more_memory",
        take="""
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
        terms=_TERMS,
    ),
    Greed(
        name="many_processes_cannot_take_all_memory",
        take="""
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
        terms=_TERMS.ending(Reason.TIMED_OUT),
    ),
    Greed(
        name="a_process_that_hides_cannot_take_all_memory",
        take="""
import ctypes, time
def take():
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # now only root may look into it
    kept = [bytearray(b"x") * (1 << 20) for _ in range(AMOUNT)]
    time.sleep(0.3)  # a watch may take a moment to see it
    return len(kept)
""",
        much=1024,
        little=8,
        terms=_TERMS,
    ),
    Greed(
        name="shared_mappings_cannot_take_all_memory",
        take="""
import mmap
def take():
    kept = mmap.mmap(-1, AMOUNT << 20)
    for offset in range(0, AMOUNT << 20, 4096):
        kept[offset] = 1
    return len(kept)
""",
        much=1024,
        little=8,
        terms=_TERMS,
    ),
    Greed(
        name="huge_pages_cannot_take_all_memory",
        take="""
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
        terms=_TERMS,
    ),
    Greed(
        name="files_in_memory_cannot_take_all_memory",
        take="""
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
        terms=_TERMS,
    ),
    Greed(
        name="shared_memory_files_cannot_take_all_memory",
        take="""
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
        terms=_ROOMY,
    ),
    Greed(
        name="system_v_memory_cannot_take_all_memory",
        take="""
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
        terms=_TERMS,
    ),
    Greed(
        name="pipe_buffers_cannot_take_all_memory",
        take="""
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
        terms=_TERMS.within(replace(TIGHT, open_files=2000)).against_the_hosts_kernel(),
    ),
    Greed(
        name="page_tables_cannot_take_all_memory",
        take="""
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
        terms=_OF_THE_KERNEL,
    ),
    Greed(
        name="shared_memory_that_is_not_mapped_cannot_take_all_memory",
        take="""
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
        terms=_OF_THE_KERNEL,
    ),
    Greed(
        name="files_and_memory_together_cannot_take_too_much",
        take="""
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
        terms=_FILES_IN_MEMORY,
    ),
    Greed(
        name="shared_memory_files_and_memory_together_cannot_take_too_much",
        take="""
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
        terms=_FILES_IN_MEMORY,
    ),
    Greed(
        name="a_decompression_bomb_cannot_take_all_memory",
        take="""
import zlib
def take():
    packer, packed = zlib.compressobj(1), b""
    for _ in range(AMOUNT):
        packed += packer.compress(bytes(1 << 20))
    return len(zlib.decompress(packed + packer.flush())) >> 20
""",
        much=300,
        little=4,
        terms=_TERMS,
    ),
    Greed(
        name="deep_recursion_is_only_a_crash",
        take="""
import sys
def take():
    sys.setrecursionlimit(AMOUNT * 10)
    def dive(depth):
        return depth if depth >= AMOUNT else next(map(dive, (depth + 1,)))
    return dive(0)
""",
        much=3_000_000,
        little=50,
        terms=_TERMS.ending(Reason.SIGNALLED, Reason.CPU_TIME, Reason.TIMED_OUT),
    ),
)

CASES = tuple(greed.case() for greed in _GREEDS)
