"""Requirements for limits: each one applies, is reported, and leaves the sandbox usable.

Workspace and temporary files share the limit of disk space.
"""

from dataclasses import replace
from pathlib import PurePosixPath

from assay.contracts.errors import WorkspaceFullError
from assay.contracts.execution import ExecutionResult, Isolation, LimitName, Limits, Reason
from assay.contracts.ports import Sandbox, SandboxBackend
from assay.selftest.checks import requirement
from assay.selftest.programs import (
    HEARTBEAT,
    ORDINARY,
    TEN_THAT_WAIT,
    beats_go_on,
    describe,
    expect,
    python,
    refused,
    run_alone,
    run_expecting,
    run_well,
    shell,
)

_SLEEP = python("import time; print('so far', flush=True); time.sleep(600)")
_BURN = "while True: pass"


@requirement
async def a_sandbox_reports_its_limits(backend: SandboxBackend) -> None:
    limits = Limits(wall_s=5, cpu_s=4, memory_mb=99, processes=17, disk_mb=9, open_files=77)
    async with backend.open_sandbox(limits) as sandbox:
        assert sandbox.limits == limits, f"it says {sandbox.limits}"


@requirement(limits=replace(ORDINARY, wall_s=0.7))
async def a_program_that_runs_too_long_is_timed_out(sandbox: Sandbox) -> None:
    for program in (_SLEEP, shell("echo so far; sleep 600")):
        result = await sandbox.run(program)

        _ended_by(result, Reason.TIMED_OUT, "wall_s")
        assert result.timed_out, describe(result)
        assert result.stdout == "so far\n", f"output was lost: {describe(result)}"
        assert 0.7 <= result.duration_s < 10, describe(result)


@requirement
async def a_program_may_be_given_less_time_than_its_sandbox(sandbox: Sandbox) -> None:
    result = await sandbox.run(replace(_SLEEP, timeout_s=0.4))

    _ended_by(result, Reason.TIMED_OUT, "wall_s")
    assert 0.4 <= result.duration_s < 10, describe(result)


@requirement(limits=replace(ORDINARY, wall_s=0.4))
async def a_program_cannot_be_given_more_time_than_its_sandbox(sandbox: Sandbox) -> None:
    result = await sandbox.run(replace(_SLEEP, timeout_s=500))

    _ended_by(result, Reason.TIMED_OUT, "wall_s")
    assert result.duration_s < 10, describe(result)


@requirement(limits=replace(ORDINARY, wall_s=0.5))
async def a_program_that_ignores_every_signal_is_timed_out(sandbox: Sandbox) -> None:
    source = """
        import signal, time
        for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(600)
    """
    result = await sandbox.run(python(source))

    _ended_by(result, Reason.TIMED_OUT, "wall_s")


@requirement(limits=replace(ORDINARY, wall_s=1.0))
async def a_timeout_ends_everything_the_program_started(sandbox: Sandbox) -> None:
    source = f"""{HEARTBEAT}
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 256)
        beat_forever()
    os._exit(0)
os.wait()
time.sleep(600)
"""
    result = await sandbox.run(python(source))

    _ended_by(result, Reason.TIMED_OUT, "wall_s")
    assert not await beats_go_on(sandbox), "a grandchild in its own session lives on"


@requirement(limits=replace(ORDINARY, cpu_s=0.5))
async def processor_time_is_limited(sandbox: Sandbox) -> None:
    result = await sandbox.run(python(_BURN))

    _ended_by(result, Reason.CPU_TIME, "cpu_s")
    assert 0.4 <= result.cpu_s < 5, describe(result)


@requirement(limits=replace(ORDINARY, cpu_s=1))
async def processor_time_is_summed_over_processes(sandbox: Sandbox) -> None:
    source = """
        import os, time
        for _ in range(8):
            if os.fork() == 0:
                while time.process_time() < 0.5:
                    pass
                os._exit(0)
            os.wait()
        print("used four seconds")
    """
    result = await sandbox.run(python(source))

    _ended_by(result, Reason.CPU_TIME, "cpu_s")
    assert result.stdout == "", describe(result)


@requirement(limits=replace(ORDINARY, cpu_s=1))
async def processor_time_is_counted_per_execution(sandbox: Sandbox) -> None:
    source = """
        import time
        while time.process_time() < 0.6:
            pass
    """
    for _ in range(3):
        await run_well(sandbox, source)


@requirement
async def waiting_uses_no_processor_time(backend: SandboxBackend) -> None:
    limits = replace(ORDINARY, cpu_s=0.5)
    result = await run_alone(backend, python("import time; time.sleep(0.9)"), limits)

    assert result.succeeded, describe(result)


@requirement(limits=replace(ORDINARY, memory_mb=128))
async def memory_is_limited(sandbox: Sandbox) -> None:
    source = "held = bytearray(b'x') * (400 << 20); print('held', len(held))"
    result = await sandbox.run(python(source))

    assert "held" not in result.stdout, describe(result)
    assert result.reason is Reason.OUT_OF_MEMORY, describe(result)
    assert "memory_mb" in result.limits_hit, describe(result)
    assert await run_well(sandbox, "print('alive')") == "alive\n"


@requirement(limits=replace(ORDINARY, memory_mb=128))
async def memory_is_summed_over_processes(sandbox: Sandbox) -> None:
    source = """
        import os, select
        ready, tell = os.pipe()
        stay, leave = os.pipe()
        for _ in range(5):
            if os.fork() == 0:
                held = bytearray(b'x') * (60 << 20)
                os.write(tell, b".")
                os.read(stay, 1)
                os._exit(0)
        os.close(tell)
        count = 0
        while count < 5 and select.select([ready], [], [], 2)[0] and os.read(ready, 1):
            count += 1
        print("held at once:", count)
    """
    result = await sandbox.run(python(source))

    assert "held at once: 5" not in result.stdout, describe(result)
    assert "memory_mb" in result.limits_hit, describe(result)


@requirement(limits=replace(ORDINARY, memory_mb=128))
async def memory_within_the_limit_can_be_used(sandbox: Sandbox) -> None:
    source = "held = bytearray(b'x') * (64 << 20); print('held', len(held) >> 20)"
    await run_expecting(sandbox, python(source), stdout="held 64\n", limits_hit=())


@requirement
async def many_small_processes_need_little_memory(backend: SandboxBackend) -> None:
    limits = replace(ORDINARY, memory_mb=128, processes=32)
    result = await run_alone(backend, python(TEN_THAT_WAIT), limits)

    expect(result, succeeded=True, limits_hit=())


@requirement(needs=Isolation.ISOLATED, limits=replace(ORDINARY, processes=12))
async def processes_are_limited(sandbox: Sandbox) -> None:
    source = """
        import os, time
        for count in range(100):
            try:
                child = os.fork()
            except BlockingIOError:
                time.sleep(0.3)  # long enough to be seen where the kernel does not count refusals
                raise
            if child == 0:
                time.sleep(600)
        print("started a hundred")
    """
    result = await sandbox.run(python(source))

    expect(result, stdout="", reason=Reason.TOO_MANY_PROCESSES)
    assert "processes" in result.limits_hit, describe(result)
    assert await run_well(sandbox, "print('alive')") == "alive\n"


@requirement(needs=Isolation.ISOLATED, limits=replace(ORDINARY, processes=12))
async def a_program_that_handles_a_limit_succeeds(sandbox: Sandbox) -> None:
    source = """
        import os, time
        count = 1
        try:
            while count < 100:
                if os.fork() == 0:
                    time.sleep(600)
                count += 1
        except BlockingIOError:
            time.sleep(0.3)
        print(count)
    """
    result = await run_expecting(sandbox, python(source), succeeded=True)
    assert int(result.stdout) <= 12, f"{result.stdout} processes were there at once"
    assert result.limits_hit == ("processes",), describe(result)


@requirement(limits=replace(ORDINARY, processes=11))
async def as_many_processes_as_the_limit_can_run(sandbox: Sandbox) -> None:
    await run_expecting(sandbox, python(TEN_THAT_WAIT), succeeded=True)


@requirement(limits=replace(ORDINARY, processes=12))
async def threads_count_as_processes(sandbox: Sandbox) -> None:
    source = """
        import threading, time
        stop = threading.Event()
        try:
            for _ in range(100):
                threading.Thread(target=stop.wait).start()
        except RuntimeError:
            print("no more than", threading.active_count())
        time.sleep(0.3)
        stop.set()
    """
    result = await sandbox.run(python(source))

    # A backend that cannot refuse a thread may detect the excess and end the program.
    noticed = result.reason is Reason.TOO_MANY_PROCESSES
    assert noticed or result.stdout.startswith("no more than "), describe(result)
    assert noticed or int(result.stdout.split()[-1]) <= 12, describe(result)
    assert "processes" in result.limits_hit, describe(result)


@requirement(limits=replace(ORDINARY, open_files=40))
async def open_files_are_limited(sandbox: Sandbox) -> None:
    source = """
        held = []
        try:
            while len(held) < 500:
                held.append(open("/dev/null"))
        except OSError as error:
            held.clear()
            print(error.strerror)
    """
    await run_expecting(sandbox, python(source), stdout="Too many open files\n")


@requirement
async def a_sandbox_survives_every_limit(backend: SandboxBackend) -> None:
    limits = replace(ORDINARY, cpu_s=1.5, memory_mb=128, output_bytes=5000)
    endings = (
        (replace(_SLEEP, timeout_s=0.3), Reason.TIMED_OUT),
        (python(_BURN), Reason.CPU_TIME),
        (python("held = bytearray(b'x') * (400 << 20)"), Reason.OUT_OF_MEMORY),
        (python("while True:\n    print('x' * 999)"), Reason.OUTPUT_LIMIT),
    )
    async with backend.open_sandbox(limits) as sandbox:
        await run_well(sandbox, "open('kept', 'w').write('still here')")
        for program, reason in endings:
            result = await sandbox.run(program)
            assert result.reason is reason, f"expected {reason.value!r}: {describe(result)}"

            assert await run_well(sandbox, "print(open('kept').read())") == "still here\n"


def _ended_by(result: ExecutionResult, reason: Reason, limit: LimitName) -> None:
    assert result.reason is reason, f"expected reason {reason.value!r}: {describe(result)}"
    assert result.exit_code is None, f"a limit leaves no exit code: {describe(result)}"
    assert limit in result.limits_hit, describe(result)
    assert not result.succeeded, describe(result)


_SMALL = replace(ORDINARY, disk_mb=12)
_FULL = PurePosixPath("full")

_FILL = """
    def fill(path, megabytes):
        written = 0
        try:
            with open(path, "wb", buffering=0) as file:
                while written < megabytes << 20:
                    written += file.write(bytes(1 << 16))
        except OSError as error:
            print(error.strerror)
        return written >> 20
"""


@requirement(limits=_SMALL)
async def the_size_of_the_workspace_is_limited(sandbox: Sandbox) -> None:
    result = await sandbox.run(python("open('full', 'wb').write(bytes(100 << 20))"))

    assert result.reason is Reason.DISK_FULL, describe(result)
    assert "disk_mb" in result.limits_hit, describe(result)
    await sandbox.remove_path(_FULL)
    assert await run_well(sandbox, "print(open('new', 'w').write('room'))") == "4\n"


@requirement(needs=Isolation.ISOLATED, limits=_SMALL)
async def a_program_that_handles_a_full_disk_succeeds(sandbox: Sandbox) -> None:
    result = await sandbox.run(python(_FILL + "    print(fill('full', 100) <= 12)"))

    expect(result, succeeded=True, stdout="No space left on device\nTrue\n")
    assert "disk_mb" in result.limits_hit, describe(result)


@requirement(limits=_SMALL)
async def as_much_disk_as_the_limit_can_be_used(sandbox: Sandbox) -> None:
    result = await sandbox.run(python(_FILL + "    print(fill('big', 11))"))

    expect(result, stdout="11\n", limits_hit=())


@requirement
async def temporary_files_count_against_the_disk_limit(backend: SandboxBackend) -> None:
    source = """
    import os, tempfile
    first = fill("here", 8)
    second = fill(os.path.join(tempfile.gettempdir(), "there"), 8)
    print(first, first + second <= 12)
    """
    result = await run_alone(backend, python(_FILL + source), _SMALL)

    assert "disk_mb" in result.limits_hit, describe(result)
    # A backend without a separate file system can only detect the excess.
    if backend.isolation.satisfies(Isolation.ISOLATED):
        assert result.stdout == "No space left on device\n8 True\n", describe(result)


@requirement
async def shared_memory_counts_against_a_limit(backend: SandboxBackend) -> None:
    source = """
    import os
    first = fill("here", 8)
    second = fill("/dev/shm/there", 200) if os.path.isdir("/dev/shm") else 0
    print(second < 200)
    """
    limits = replace(_SMALL, memory_mb=64)
    result = await run_alone(backend, python(_FILL + source), limits)

    allowed = result.reason in {Reason.OUT_OF_MEMORY, Reason.DISK_FULL}
    assert allowed or result.stdout.endswith("True\n"), describe(result)


@requirement(limits=replace(ORDINARY, disk_mb=4))
async def tiny_files_are_limited_too(sandbox: Sandbox) -> None:
    source = """
        made = 0
        try:
            while made < 150_000:
                open(f"tiny-{made}", "w").close()
                made += 1
            print("no end to it")
        except OSError as error:
            print(error.strerror)
    """
    result = await sandbox.run(python(source))

    assert "no end to it" not in result.stdout, describe(result)
    noticed = result.reason is Reason.DISK_FULL
    assert noticed or result.stdout == "No space left on device\n", describe(result)
    assert "disk_mb" in result.limits_hit, describe(result)


@requirement(limits=_SMALL)
async def a_file_that_does_not_fit_is_refused(sandbox: Sandbox) -> None:
    await _is_full(sandbox, bytes(100 << 20))

    await sandbox.write_file(PurePosixPath("small"), b"fits")
    assert await sandbox.read_file(PurePosixPath("small")) == b"fits"


@requirement(limits=_SMALL)
async def a_refused_file_leaves_no_part_of_it(sandbox: Sandbox) -> None:
    await _is_full(sandbox, bytes(100 << 20))

    left = [str(entry.path) for entry in await sandbox.list_files()]
    assert left == [], f"a half-written file was left: {left}"


@requirement(limits=_SMALL)
async def a_refused_file_keeps_the_previous_content(sandbox: Sandbox) -> None:
    await sandbox.write_file(_FULL, b"old content")

    await _is_full(sandbox, bytes(100 << 20))

    assert await sandbox.read_file(_FULL) == b"old content", "the old content is gone"


@requirement(needs=Isolation.ISOLATED, limits=replace(ORDINARY, disk_mb=4))
async def a_full_workspace_refuses_directories_and_can_be_emptied(sandbox: Sandbox) -> None:
    source = """
        import os
        os.mkdir("pile")
        try:
            for number in range(150_000):
                with open(f"pile/{number}", "wb") as file:
                    file.write(b"x" * 4096)
        except OSError:
            pass
        try:
            for number in range(150_000):
                os.mkdir(f"pile/d{number}")
        except OSError:
            print("full")
    """
    assert await run_well(sandbox, source) == "full\n"

    await refused(WorkspaceFullError, sandbox.make_directory(PurePosixPath("one/more")))
    await sandbox.remove_path(PurePosixPath("pile"))
    await sandbox.make_directory(PurePosixPath("one/more"))


@requirement
async def the_disk_limit_is_counted_per_sandbox(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(_SMALL) as full, backend.open_sandbox(_SMALL) as other:
        await _is_full(full, bytes(100 << 20))
        await full.write_file(_FULL, bytes(10 << 20))

        await other.write_file(_FULL, bytes(10 << 20))


async def _is_full(sandbox: Sandbox, content: bytes) -> None:
    await refused(WorkspaceFullError, sandbox.write_file(_FULL, content))
