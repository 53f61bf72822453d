"""Attacks on other processes: seeing, stopping, reading and outliving them."""

from dataclasses import replace
from functools import partial

import anyio

from assay.contracts.execution import Isolation, OutputChunk, Reason
from assay.selftest.programs import (
    BEAT_AND_SAY_SO,
    HEARTBEAT,
    beats_go_on,
    describe,
    python,
    run_alone,
)
from assay.selftest.security_tests.attack import (
    TIGHT,
    AttackConfig,
    AttackContext,
    Finding,
    build_attack,
    build_attacks,
)
from assay.selftest.security_tests.probe import (
    CALL,
    CALL_CONTROL,
    LIST_ANY,
    LIST_CONTROL,
    build_probe,
    build_probes,
)

_CONFIG = AttackConfig(group="processes")
_APART = replace(_CONFIG, needs=Isolation.ISOLATED)
_SHARED_KERNEL = replace(
    _CONFIG,
    not_applicable_from=Isolation.KERNEL,
    moot_because="processes and priorities are those of a kernel that is not the host's",
)

VISIBLE = build_probe(
    "processes_of_the_host_are_not_visible",
    detector="""
        def see():
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/cmdline") as file:
                        line = file.read()
                except OSError:
                    continue
                if MARK in line:
                    return pid, line
        judge(see)
    """,
    attack="MARK = CANARY['victim_mark_reversed'][::-1]",
    control="""
        import subprocess
        MARK = "864" + "00.5"
        child = subprocess.Popen(["sleep", MARK])
        while MARK not in open(f"/proc/{child.pid}/cmdline").read():
            pass  # its new command line appears a moment after the exec
    """,
    config=replace(_SHARED_KERNEL, needs=Isolation.ISOLATED),
)

SIGNALLING = build_probe(
    "a_process_of_the_host_cannot_be_signalled",
    detector="judge(lambda: (True, os.kill(TARGET, 9)))",
    attack="TARGET = CANARY['victim_pid']",
    control="""
        import time
        TARGET = os.fork()
        if TARGET == 0:
            time.sleep(60)
            os._exit(0)
    """,
    config=_CONFIG,
)

_MEMORY = """
import re
def read_memory():
    for place in PLACES:
        try:
            with open(f"{place}/maps") as maps:
                line = next(line for line in maps if " rw-p " in line)
            begin = int(re.match("[0-9a-f]+", line).group(), 16)
            with open(f"{place}/mem", "rb", buffering=0) as memory:
                memory.seek(begin)
                return place, len(memory.read(16))
        except OSError:
            continue
judge(read_memory)
"""

MEMORY = build_probe(
    "the_memory_of_other_processes_is_unreadable",
    detector=_MEMORY,
    attack="""
        PLACES = [f"/proc/{pid}" for pid in (1, os.getppid(), CANARY["pid"], CANARY["victim_pid"])]
    """,
    control="""
        os.mkdir("process")
        open("process/maps", "w").write("1000-2000 rw-p 00000000 00:00 0 [heap]\\n")
        open("process/mem", "wb").write(bytes(0x2000))
        PLACES = ["missing", "process"]
    """,
    config=_CONFIG,
)

_TOLD_BY_GVISOR = frozenset({"environ", "maps", "fd", "fdinfo", "auxv"})
"""All processes may read these in gVisor; the first process is a container's init, without a
secret."""
_PRIVATE = ("environ", "maps", "fd", "fdinfo", "cwd", "root", "exe", "auxv", "stack", "syscall")

PRIVATE_FILES = tuple(
    build_probe(
        f"{name}_of_the_first_process_is_private",
        detector="""
            def look():
                try:
                    return os.readlink(TARGET)
                except OSError:
                    pass
                try:
                    return os.listdir(TARGET)
                except OSError:
                    with open(TARGET, "rb") as file:
                        return file.read(64)
            judge(look)
        """,
        attack=f"TARGET = '/proc/1/{name}'",
        control="""
            open("planted", "w").write("permitted")
            TARGET = "planted"
        """,
        config=_SHARED_KERNEL if name in _TOLD_BY_GVISOR else _CONFIG,
    )
    for name in _PRIVATE
)

PARENT_DESCRIPTORS = build_probe(
    "descriptors_of_parents_are_not_listed",
    detector=LIST_ANY,
    attack="TARGETS = [f'/proc/{pid}/fd' for pid in (1, os.getppid(), CANARY['pid'])]",
    control=LIST_CONTROL,
    config=_SHARED_KERNEL,
)

_ADVANTAGES = {
    "protection_from_the_memory_killer_is_refused": (
        "lambda: open('/proc/self/oom_score_adj', 'w', buffering=1).write('-999\\n')"
    ),
    "a_higher_priority_is_refused": "lambda: os.setpriority(os.PRIO_PROCESS, 0, -10)",
    "real_time_scheduling_is_refused": (
        "lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"
    ),
    "slowing_a_process_of_the_host_is_refused": (
        "lambda: os.setpriority(os.PRIO_PROCESS, CANARY['victim_pid'], 19)"
    ),
}

_WITHOUT_EFFECT_IN_GVISOR = frozenset(
    {"protection_from_the_memory_killer_is_refused", "a_higher_priority_is_refused"}
)

ADVANTAGES = build_probes(
    _ADVANTAGES,
    detector=CALL,
    attack="ACT = {row}",
    control=CALL_CONTROL,
    config=lambda name: _SHARED_KERNEL if name in _WITHOUT_EFFECT_IN_GVISOR else _CONFIG,
)


async def _victim_dies(context: AttackContext, attack: str) -> Finding:
    """Run an attack on every process, or kill the victim directly as the control."""
    if attack:
        result = await run_alone(context.backend, python(attack), replace(TIGHT, wall_s=3.0))
        ran = "attacking" in result.stdout
        assert ran, f"nothing was tested: {describe(result)}"
    else:
        context.canaries.victim.kill()
        await context.canaries.victim.wait()
    return Finding(
        breached=not context.canaries.victim_lives(), evidence="the victim is dead or stopped"
    )


_MASSACRES = {
    "killing_everything_kills_nothing_of_the_host": """
        import os
        print("attacking", flush=True)
        for number in (15, 9):
            try:
                os.kill(-1, number)
            except OSError:
                pass
    """,
    "killing_every_number_kills_nothing_of_the_host": """
        import os
        print("attacking", flush=True)
        for pid in range(2, 70_000):
            if pid != os.getpid():
                try:
                    os.kill(pid, 9)
                except OSError:
                    pass
    """,
    "stopping_everything_stops_nothing_of_the_host": """
        import os
        print("attacking", flush=True)
        try:
            os.kill(-1, 19)
        except OSError:
            pass
    """,
}

MASSACRES = build_attacks(
    _MASSACRES, _victim_dies, control=partial(_victim_dies, attack=""), config=_APART
)


_ENDS = {Reason.COMPLETED, Reason.SIGNALLED, Reason.TIMED_OUT, Reason.TOO_MANY_PROCESSES}
"""The last one is for busy machines: each generation waits for its turn to exit."""


async def _outlives(context: AttackContext, source: str) -> Finding:
    """Run a program that ends or is stopped, and check whether any part of it continues."""
    async with context.backend.open_sandbox(replace(TIGHT, wall_s=1.5)) as sandbox:
        result = await sandbox.run(python(HEARTBEAT + source))
        assert result.reason in _ENDS, f"nothing was tested: {describe(result)}"
        return Finding(breached=await beats_go_on(sandbox), evidence="a process is still running")


async def _goes_on(context: AttackContext) -> Finding:
    """Check a program that is still running."""
    beating = anyio.Event()

    def hear(_: OutputChunk) -> None:
        beating.set()

    async with context.backend.open_sandbox(TIGHT) as sandbox, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(sandbox.run, python(BEAT_AND_SAY_SO), on_output=hear))
        with anyio.fail_after(10):
            await beating.wait()
        goes_on = await beats_go_on(sandbox, within_s=5.0)
        await sandbox.cancel()
        return Finding(breached=goes_on, evidence="a process is still running")
    raise AssertionError("the sandbox swallowed an error")


_SURVIVORS = {
    "a_daemon_does_not_outlive_its_program": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 1024)
        beat_forever()
    os._exit(0)
os.wait()
await_a_beat()
""",
    "a_daemon_that_ignores_signals_does_not_outlive_its_program": """
import signal
for number in set(signal.valid_signals()) - {9, 19}:
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    beat_forever()
await_a_beat()
""",
    "a_program_that_keeps_forking_cannot_outrun_its_end": """
def run_away():
    while True:
        if os.fork():
            os._exit(0)
        with open("beats", "ab") as file:
            file.write(b".")
if os.fork() == 0:
    os.setsid()
    run_away()
await_a_beat()
""",
    "runners_in_the_background_cannot_outrun_a_timeout": """
def run_away():
    while True:
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            pass
        with open("beats", "ab") as file:
            file.write(b".")
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        run_away()
time.sleep(60)
""",
    "a_child_that_cut_its_leash_does_not_outlive_its_program": """
import ctypes
libc = ctypes.CDLL(None)
if os.fork() == 0:
    libc.prctl(1, 0, 0, 0, 0)   # no signal when the parent dies
    libc.prctl(36, 1, 0, 0, 0)  # adopt orphans
    os.setsid()
    if os.fork() == 0:
        beat_forever()
    time.sleep(60)
await_a_beat()
""",
    "a_stopped_program_does_not_hold_up_its_end": """
import signal
if os.fork() == 0:
    os.setsid()
    beat_forever()
await_a_beat()
os.kill(os.getpid(), signal.SIGSTOP)
""",
    "another_program_does_not_outlive_the_one_that_started_it": """
import subprocess, sys
subprocess.Popen(
    ["sh", "-c", "while :; do printf . >> beats; done"],
    start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
)
await_a_beat()
""",
    "a_sibling_made_by_clone_does_not_outlive_its_program": """
import ctypes, platform
number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
if ctypes.CDLL(None).syscall(number, 0x8000 | 17, 0, 0, 0, 0) == 0:  # a child of one's parent
    beat_forever()
while not os.path.exists("beats"):
    with open("beats", "ab") as file:
        file.write(b".")
time.sleep(0.2)
""",
}


SURVIVORS = build_attacks(_SURVIVORS, _outlives, control=_goes_on, config=_CONFIG)


async def _keeps_waiting(context: AttackContext, *, source: str, too_long_s: float) -> Finding:
    result = await run_alone(context.backend, python(source), replace(TIGHT, wall_s=30.0))
    assert result.succeeded, f"nothing was tested: {describe(result)}"
    return Finding(
        breached=result.duration_s >= too_long_s, evidence=f"it took {result.duration_s:.1f} s"
    )


ORPHANS = build_attack(
    "an_orphan_that_holds_the_output_cannot_delay_the_result",
    attack=partial(
        _keeps_waiting,
        source="import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)",
        too_long_s=10.0,
    ),
    control=partial(_keeps_waiting, source="import time; time.sleep(0.4)", too_long_s=0.3),
    config=_CONFIG,
)
