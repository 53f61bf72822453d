"""Attacks on countable resources: processes, files, output, arguments."""

from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

from assay.contracts.errors import UsageError
from assay.contracts.execution import Command, Reason
from assay.selftest.checks import Check
from assay.selftest.programs import describe, python, run_alone, shell
from assay.selftest.security_tests.attack import (
    TIGHT,
    AttackConfig,
    AttackContext,
    Finding,
    build_attack,
    build_attacks,
)
from assay.selftest.security_tests.probe import CALL, build_probe, build_probes

_CONFIG = AttackConfig(group="resources")
_CROWDED = _CONFIG.ending(Reason.TOO_MANY_PROCESSES, Reason.OUT_OF_MEMORY)


def _flood(
    name: str, one_more: str, *, many: int, few: int = 4, config: AttackConfig = _CONFIG
) -> Check:
    """Build an attack that requests MANY of a resource.

    `one_more` defines `one_more(number)`, which raises when the resource is used up.
    """
    return build_probe(
        name,
        detector=f"{one_more}\njudge(lambda: [one_more(n) for n in range(MANY)] and MANY)",
        attack=f"MANY = {many}",
        control=f"MANY = {few}",
        config=config,
    )


FLOODS = (
    _flood(
        "a_flood_of_processes_is_stopped",
        """
import time
def one_more(number):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
""",
        many=500,
        config=_CROWDED,
    ),
    _flood(
        "a_flood_of_threads_is_stopped",
        """
import threading
def one_more(number):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
""",
        many=2000,
        config=_CROWDED,
    ),
    _flood(
        "a_flood_of_the_dead_is_stopped",
        """
def one_more(number):
    if os.fork() == 0:
        os._exit(0)
""",
        many=500,
        config=_CROWDED,
    ),
    _flood(
        "a_flood_of_descriptors_is_stopped",
        """
kept = []
def one_more(number):
    kept.append(os.dup(0))
""",
        many=5000,
    ),
    _flood(
        "a_flood_of_sockets_is_stopped",
        """
import socket
kept = []
def one_more(number):
    kept.append(socket.socketpair())
""",
        many=5000,
    ),
    _flood(
        "a_flood_of_files_is_stopped",
        """
def one_more(number):
    os.close(os.open(f"file-{number}", os.O_CREAT | os.O_WRONLY))
""",
        many=200_000,
        few=20,
        config=_CONFIG.within(replace(TIGHT, disk_mb=4, wall_s=20.0, cpu_s=20.0)).ending(
            Reason.DISK_FULL, Reason.OUT_OF_MEMORY
        ),
    ),
    _flood(
        "a_flood_of_links_is_stopped",
        """
def one_more(number):
    os.symlink("x" * 4000, f"link-{number}")
""",
        many=200_000,
        few=20,
        config=_CONFIG.within(replace(TIGHT, disk_mb=4, wall_s=20.0, cpu_s=20.0)).ending(
            Reason.DISK_FULL, Reason.OUT_OF_MEMORY
        ),
    ),
    _flood(
        "a_flood_of_attributes_is_stopped",
        """
open("file", "w").close()
def one_more(number):
    try:
        os.setxattr("file", f"user.{number}", bytes(60_000))
    except OSError:
        if MANY > 10:
            raise  # where there are none, the control counts for nothing but itself
""",
        many=5000,
        config=_CONFIG.ending(Reason.DISK_FULL, Reason.OUT_OF_MEMORY).against_the_hosts_kernel(),
    ),
    _flood(
        "a_flood_of_inotify_instances_leaves_some_to_the_user",
        """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def one_more(number):
    if libc.inotify_init1(0) < 0:
        refused = ctypes.get_errno()
        if not (MANY < 10 and refused in (errno.ENOSYS, errno.EPERM)):
            raise OSError(refused, "inotify_init1")
        # Where there are none, the control counts for nothing but itself.
""",
        many=40,
        config=_CONFIG.within(replace(TIGHT, open_files=256)).against_the_hosts_kernel(),
    ),
    _flood(
        "a_flood_of_queued_signals_is_stopped",
        """
import ctypes, signal
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
libc = ctypes.CDLL(None, use_errno=True)
def one_more(number):
    if libc.sigqueue(os.getpid(), 34 + number % 30, None) != 0:
        raise OSError(ctypes.get_errno(), "sigqueue")
""",
        many=500_000,
    ),
)

_LIMITS = {
    "processes": "resource.RLIMIT_NPROC",
    "open_files": "resource.RLIMIT_NOFILE",
    "core_dumps": "resource.RLIMIT_CORE",
    "locked_memory": "resource.RLIMIT_MEMLOCK",
}

RAISED_LIMITS = build_probes(
    _LIMITS,
    name="the_limit_on_{name}_cannot_be_raised",
    detector=CALL,
    attack="""
        import resource
        unlimited = resource.RLIM_INFINITY
        ACT = lambda: resource.setrlimit({row}, (unlimited, unlimited))
    """,
    control="""
        import resource
        ACT = lambda: resource.getrlimit({row})
    """,
    config=_CONFIG,
)


SOFT_LIMITS = build_probe(
    "no_soft_limit_can_be_raised",
    detector="""
        import resource
        def raise_any():
            raised = []
            for name in NAMES:
                limit = getattr(resource, "RLIMIT_" + name)
                soft, hard = resource.getrlimit(limit)
                if soft != hard:
                    resource.setrlimit(limit, (hard, hard))
                    raised.append(name)
            return raised
        judge(raise_any)
    """,
    # Not the limit of the stack: its use counts as memory.
    attack="""
        NAMES = ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "MSGQUEUE", "NICE", "NOFILE",
                 "NPROC", "RSS", "RTPRIO", "RTTIME", "SIGPENDING")
    """,
    control="""
        import resource
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most - 1, most))
        NAMES = ("NOFILE",)
    """,
    config=_CONFIG.against_the_hosts_kernel(),
)


async def _bomb(context: AttackContext, *, generations: int, too_many: int) -> Finding:
    """Let every process fork repeatedly; each fork leaves a mark."""
    source = f"""
        import os, time
        print("forking", flush=True)
        for _ in range({generations}):
            try:
                os.fork()
            except OSError:
                time.sleep(0.01)
                continue
            with open("born", "ab") as file:
                file.write(b".")
        time.sleep(0.2)
    """
    async with context.backend.open_sandbox(replace(TIGHT, wall_s=2.0)) as sandbox:
        result = await sandbox.run(python(source))
        assert "forking" in result.stdout, f"nothing was tested: {describe(result)}"
        born = len(await sandbox.read_file(PurePosixPath("born")))
    return Finding(breached=born > too_many, evidence=f"{born} marks were left")


FORK_BOMB = build_attack(
    "a_fork_bomb_is_stopped",
    # Every fork leaves two marks, and an exited process makes room for another; a monitor needs a
    # moment to detect it. An unstopped bomb leaves 256 for every allowed process.
    attack=partial(_bomb, generations=12, too_many=40 * TIGHT.processes),
    control=partial(_bomb, generations=3, too_many=5),
    config=_CONFIG,
)


async def _completes(context: AttackContext, script: str) -> Finding:
    """Check whether a program runs to its end."""
    result = await run_alone(context.backend, shell(script), TIGHT)
    tried = result.stdout_bytes or result.stderr_bytes
    assert tried, f"nothing was tested: {describe(result)}"
    kept = max(len(result.stdout_bytes), len(result.stderr_bytes))
    assert kept <= TIGHT.output_bytes, f"{kept} bytes were kept"
    return Finding(breached=result.reason is Reason.COMPLETED, evidence=describe(result))


_OUTPUT_BOMBS = {
    "a_bomb_of_output_is_stopped": "head -c 64000000 /dev/zero",
    "a_bomb_of_error_output_is_stopped": "head -c 64000000 /dev/zero >&2",
    "a_bomb_on_both_streams_is_stopped": (
        "head -c 64000000 /dev/zero & head -c 64000000 /dev/zero >&2; wait"
    ),
    "a_bomb_of_output_by_many_processes_is_stopped": (
        "for i in 1 2 3 4 5 6 7 8; do yes $i & done; wait"
    ),
    "a_bomb_of_empty_lines_is_stopped": "yes ''",
}

OUTPUT_BOMBS = build_attacks(
    _OUTPUT_BOMBS,
    _completes,
    control=partial(_completes, script="head -c 1000 /dev/zero"),
    config=_CONFIG,
)


async def _starts(context: AttackContext, program: Command) -> Finding:
    """Check whether a program starts; a regular error is fine."""
    try:
        result = await run_alone(context.backend, program, TIGHT)
    except UsageError as error:
        return Finding(breached=False, evidence=str(error))
    started = result.reason is not Reason.COULD_NOT_START
    return Finding(breached=started, evidence=describe(result))


_GIANTS = {
    "a_giant_argument_is_refused": Command(argv=("true", "x" * (8 << 20))),
    "a_giant_number_of_arguments_is_refused": Command(argv=("true", *["x" * 1000] * 20_000)),
    "a_giant_environment_is_refused": Command(argv=("true",), env={"GIANT": "x" * (8 << 20)}),
    "a_giant_program_name_is_refused": Command(argv=("x" * 100_000,)),
}

GIANTS = build_attacks(
    _GIANTS,
    _starts,
    control=partial(_starts, program=Command(argv=("true",))),
    config=_CONFIG,
)
