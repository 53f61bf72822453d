"""Requirements for the measurements of a result: they exist and match the events."""

import math
from dataclasses import fields

from assay.contracts.ports import Sandbox, SandboxBackend
from assay.selftest.checks import requirement
from assay.selftest.programs import describe, python, run_alone


@requirement
async def a_result_names_its_backend_and_isolation(backend: SandboxBackend) -> None:
    result = await run_alone(backend, python("pass"))

    assert result.backend == backend.name, f"{result.backend!r} is not {backend.name!r}"
    assert result.isolation is backend.isolation, f"{result.isolation} is not {backend.isolation}"


@requirement
async def durations_follow_the_clock(sandbox: Sandbox) -> None:
    result = await sandbox.run(python("import time; time.sleep(0.4)"))

    assert 0.4 <= result.duration_s < 10, describe(result)
    assert 0.4 <= result.timings.run_s < 10, f"timings: {result.timings}"
    for timing in fields(result.timings):
        seconds = getattr(result.timings, timing.name)
        assert math.isfinite(seconds), f"{timing.name} is {seconds}"
        assert seconds >= 0, f"{timing.name} is {seconds}"


@requirement
async def processor_time_follows_the_work(sandbox: Sandbox) -> None:
    work = """
        import time
        while time.process_time() < 0.5:
            pass
    """
    busy = await sandbox.run(python(work))
    idle = await sandbox.run(python("import time; time.sleep(0.3)"))

    # A preloaded interpreter may already have used some of the program's CPU time.
    assert 0.3 <= busy.cpu_s < 5, f"half a second of work counts as {busy.cpu_s} s"
    assert idle.cpu_s < 0.3, f"sleeping counts as {idle.cpu_s} s"


@requirement
async def processor_time_includes_children(sandbox: Sandbox) -> None:
    source = """
        import os, time
        for _ in range(2):
            if os.fork() == 0:
                begin = time.process_time()
                while time.process_time() < begin + 0.3:
                    pass
                os._exit(0)
        os.wait(), os.wait()
    """
    result = await sandbox.run(python(source))

    assert 0.5 <= result.cpu_s < 5, f"0.6 s of work counts as {result.cpu_s} s"


@requirement
async def peak_memory_follows_the_use(sandbox: Sandbox) -> None:
    small = await sandbox.run(python("pass"))
    big = await sandbox.run(python("held = bytearray(b'x') * (100 << 20)"))
    again = await sandbox.run(python("pass"))

    assert small.peak_memory_bytes > 0, "a program ran in no memory"
    grown = (big.peak_memory_bytes - small.peak_memory_bytes) >> 20
    assert 90 <= grown <= 140, f"100 MB held, and the peak grew by {grown} MB"
    shrunk = (big.peak_memory_bytes - again.peak_memory_bytes) >> 20
    assert shrunk >= 80, f"the peak of an earlier execution is counted again ({shrunk} MB less)"
