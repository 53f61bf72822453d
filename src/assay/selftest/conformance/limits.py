"""Requirements for limits: each one applies, is reported, and leaves the sandbox usable."""

from dataclasses import replace

from assay.contracts.execution import ExecutionResult, Isolation, LimitName, Limits, Reason
from assay.contracts.ports import SandboxBackend
from assay.selftest.conformance.promise import promise
from assay.selftest.programs import (
    HEARTBEAT,
    ORDINARY,
    TEN_THAT_WAIT,
    beats_go_on,
    describe,
    python,
    run_alone,
    run_well,
    shell,
)

_SLEEP = python("import time; print('so far', flush=True); time.sleep(600)")
_BURN = "while True: pass"


@promise
async def a_sandbox_says_its_limits(backend: SandboxBackend) -> None:
    limits = Limits(wall_s=5, cpu_s=4, memory_mb=99, processes=17, disk_mb=9, open_files=77)
    async with backend.open_sandbox(limits) as sandbox:
        assert sandbox.limits == limits, f"it says {sandbox.limits}"


@promise
async def a_program_that_runs_too_long_is_timed_out(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(replace(ORDINARY, wall_s=0.7)) as sandbox:
        for program in (_SLEEP, shell("echo so far; sleep 600")):
            result = await sandbox.run(program)

            _ended_by(result, Reason.TIMED_OUT, "wall_s")
            assert result.timed_out, describe(result)
            assert result.stdout == "so far\n", f"output was lost: {describe(result)}"
            assert 0.7 <= result.duration_s < 10, describe(result)


@promise
async def a_program_may_be_given_less_time_than_its_sandbox(backend: SandboxBackend) -> None:
    result = await run_alone(backend, replace(_SLEEP, timeout_s=0.4))

    _ended_by(result, Reason.TIMED_OUT, "wall_s")
    assert 0.4 <= result.duration_s < 10, describe(result)


@promise
async def a_program_cannot_be_given_more_time_than_its_sandbox(backend: SandboxBackend) -> None:
    result = await run_alone(backend, replace(_SLEEP, timeout_s=500), replace(ORDINARY, wall_s=0.4))

    _ended_by(result, Reason.TIMED_OUT, "wall_s")
    assert result.duration_s < 10, describe(result)


@promise
async def a_program_that_ignores_every_signal_is_timed_out(backend: SandboxBackend) -> None:
    source = """
        import signal, time
        for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(600)
    """
    result = await run_alone(backend, python(source), replace(ORDINARY, wall_s=0.5))

    _ended_by(result, Reason.TIMED_OUT, "wall_s")


@promise
async def a_timeout_ends_everything_the_program_started(backend: SandboxBackend) -> None:
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
    async with backend.open_sandbox(replace(ORDINARY, wall_s=1.0)) as sandbox:
        result = await sandbox.run(python(source))

        _ended_by(result, Reason.TIMED_OUT, "wall_s")
        assert not await beats_go_on(sandbox), "a grandchild in its own session lives on"


@promise
async def processor_time_is_limited(backend: SandboxBackend) -> None:
    result = await run_alone(backend, python(_BURN), replace(ORDINARY, cpu_s=0.5))

    _ended_by(result, Reason.CPU_TIME, "cpu_s")
    assert 0.4 <= result.cpu_s < 5, describe(result)


@promise
async def processor_time_is_summed_over_processes(backend: SandboxBackend) -> None:
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
    result = await run_alone(backend, python(source), replace(ORDINARY, cpu_s=1))

    _ended_by(result, Reason.CPU_TIME, "cpu_s")
    assert result.stdout == "", describe(result)


@promise
async def processor_time_counts_for_each_execution_anew(backend: SandboxBackend) -> None:
    source = """
        import time
        while time.process_time() < 0.6:
            pass
    """
    async with backend.open_sandbox(replace(ORDINARY, cpu_s=1)) as sandbox:
        for _ in range(3):
            await run_well(sandbox, source)


@promise
async def waiting_uses_no_processor_time(backend: SandboxBackend) -> None:
    limits = replace(ORDINARY, cpu_s=0.5)
    result = await run_alone(backend, python("import time; time.sleep(0.9)"), limits)

    assert result.succeeded, describe(result)


@promise
async def memory_is_limited(backend: SandboxBackend) -> None:
    source = "held = bytearray(b'x') * (400 << 20); print('held', len(held))"
    async with backend.open_sandbox(replace(ORDINARY, memory_mb=128)) as sandbox:
        result = await sandbox.run(python(source))

        assert "held" not in result.stdout, describe(result)
        assert result.reason is Reason.OUT_OF_MEMORY, describe(result)
        assert "memory_mb" in result.limits_hit, describe(result)
        assert await run_well(sandbox, "print('alive')") == "alive\n"


@promise
async def memory_is_summed_over_processes(backend: SandboxBackend) -> None:
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
    result = await run_alone(backend, python(source), replace(ORDINARY, memory_mb=128))

    assert "held at once: 5" not in result.stdout, describe(result)
    assert "memory_mb" in result.limits_hit, describe(result)


@promise
async def memory_within_the_limit_can_be_used(backend: SandboxBackend) -> None:
    source = "held = bytearray(b'x') * (64 << 20); print('held', len(held) >> 20)"
    result = await run_alone(backend, python(source), replace(ORDINARY, memory_mb=128))

    assert result.stdout == "held 64\n", describe(result)
    assert result.limits_hit == (), describe(result)


@promise
async def many_small_processes_need_little_memory(backend: SandboxBackend) -> None:
    limits = replace(ORDINARY, memory_mb=128, processes=32)
    result = await run_alone(backend, python(TEN_THAT_WAIT), limits)

    assert result.succeeded, describe(result)
    assert result.limits_hit == (), describe(result)


@promise(needs=Isolation.ISOLATED)
async def processes_are_limited(backend: SandboxBackend) -> None:
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
    async with backend.open_sandbox(replace(ORDINARY, processes=12)) as sandbox:
        result = await sandbox.run(python(source))

        assert result.stdout == "", describe(result)
        assert result.reason is Reason.TOO_MANY_PROCESSES, describe(result)
        assert "processes" in result.limits_hit, describe(result)
        assert await run_well(sandbox, "print('alive')") == "alive\n"


@promise(needs=Isolation.ISOLATED)
async def a_program_that_copes_with_a_limit_ends_well(backend: SandboxBackend) -> None:
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
    result = await run_alone(backend, python(source), replace(ORDINARY, processes=12))

    assert result.succeeded, describe(result)
    assert int(result.stdout) <= 12, f"{result.stdout} processes were there at once"
    assert result.limits_hit == ("processes",), describe(result)


@promise
async def as_many_processes_as_promised_can_run(backend: SandboxBackend) -> None:
    result = await run_alone(backend, python(TEN_THAT_WAIT), replace(ORDINARY, processes=11))

    assert result.succeeded, describe(result)


@promise
async def threads_count_as_processes(backend: SandboxBackend) -> None:
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
    result = await run_alone(backend, python(source), replace(ORDINARY, processes=12))

    # A backend that cannot refuse a thread may detect the excess and end the program.
    noticed = result.reason is Reason.TOO_MANY_PROCESSES
    assert noticed or result.stdout.startswith("no more than "), describe(result)
    assert noticed or int(result.stdout.split()[-1]) <= 12, describe(result)
    assert "processes" in result.limits_hit, describe(result)


@promise
async def open_files_are_limited(backend: SandboxBackend) -> None:
    source = """
        held = []
        try:
            while len(held) < 500:
                held.append(open("/dev/null"))
        except OSError as error:
            held.clear()
            print(error.strerror)
    """
    result = await run_alone(backend, python(source), replace(ORDINARY, open_files=40))

    assert result.stdout == "Too many open files\n", describe(result)


@promise
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
