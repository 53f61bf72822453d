"""Attacks on time and disk space: endless programs and growing files."""

from dataclasses import replace
from functools import partial

from assay.contracts.execution import Reason
from assay.selftest.programs import describe, python, run_alone
from assay.selftest.security_tests.attack import (
    TIGHT,
    AttackConfig,
    AttackContext,
    Finding,
    build_case,
)
from assay.selftest.security_tests.exhaustion import Greed

_TIMED = AttackConfig(group="resources", limits=replace(TIGHT, wall_s=1.5)).ending(Reason.TIMED_OUT)
_METERED = AttackConfig(group="resources", limits=replace(TIGHT, cpu_s=1.0, wall_s=30.0)).ending(
    Reason.CPU_TIME
)
_ROOMY = AttackConfig(group="resources").ending(Reason.DISK_FULL, Reason.OUT_OF_MEMORY)

_TIME = (
    Greed(
        name="sleeping_forever_is_ended",
        take="""
import time
def take():
    time.sleep(AMOUNT)
    return AMOUNT
""",
        much=600,
        little=1,
        terms=_TIMED,
    ),
    Greed(
        name="ignoring_every_signal_does_not_help",
        take="""
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
        terms=_TIMED,
    ),
    Greed(
        name="waiting_for_a_lock_forever_is_ended",
        take="""
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
        terms=_TIMED,
    ),
    Greed(
        name="processor_time_is_ended_though_its_signal_is_ignored",
        take="""
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
        terms=_METERED,
    ),
    Greed(
        name="processor_time_of_a_relay_of_processes_is_ended",
        take="""
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
        terms=_METERED,
    ),
    Greed(
        name="processor_time_of_orphans_is_ended",
        take="""
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
        terms=_METERED,
    ),
    Greed(
        name="a_huge_calculation_is_ended",
        take="""
def take():
    return (7 ** (10 ** AMOUNT)).bit_length()
""",
        much=8,
        little=2,
        terms=_METERED,
    ),
    Greed(
        name="a_catastrophic_pattern_is_ended",
        take="""
import re
def take():
    return not re.match("(a+)+$", "a" * AMOUNT + "b")
""",
        much=60,
        little=3,
        terms=_METERED,
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

_ROOM = (
    Greed(
        name="one_file_cannot_fill_the_disk",
        take="""
def take():
    with open("kept", "wb", buffering=0) as file:
        for _ in range(AMOUNT):
            if file.write(bytes(1 << 20)) < 1 << 20:
                raise OSError("no more room")
    return AMOUNT
""",
        much=200,
        little=2,
        terms=_ROOMY,
    ),
    Greed(
        name="reserved_room_cannot_fill_the_disk",
        take="""
def take():
    with open("kept", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, AMOUNT << 20)
    return AMOUNT
""",
        much=200,
        little=2,
        terms=_ROOMY,
    ),
    Greed(
        name="a_mapped_sparse_file_cannot_fill_the_disk",
        take="""
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
        terms=_ROOMY.ending(Reason.SIGNALLED),
    ),
    Greed(
        name="deleted_open_files_cannot_fill_the_disk",
        take="""
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
        terms=_ROOMY,
    ),
    Greed(
        name="temporary_files_cannot_fill_the_disk",
        take="""
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
        terms=_ROOMY,
    ),
    *(
        Greed(
            name=name,
            take=f"""
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
            terms=_ROOMY,
        )
        for name, hide in _HIDING_PLACES.items()
    ),
)

CASES = tuple(greed.case() for table in (_TIME, _ROOM) for greed in table)


async def _is_blamed_on_time(arena: AttackContext, *, source: str) -> Finding:
    limits = replace(TIGHT, cpu_s=1.0, wall_s=30.0)
    result = await run_alone(arena.backend, python(source), limits)
    blamed = result.reason is Reason.CPU_TIME or "cpu_s" in result.limits_hit
    assert result.reason is not Reason.COMPLETED, f"nothing was tested: {describe(result)}"
    return Finding(breached=blamed, evidence=describe(result))


SIGNAL_OF_TIME = build_case(
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
    terms=AttackConfig(group="resources"),
)
