"""Requirements for interpreters: the state that a cell passes to the next, and its loss.

Branches are independent copies of an interpreter.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import PurePosixPath

import anyio

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import CellResult, OutputChunk, Reason
from assay.contracts.ports import Interpreter, Sandbox, SandboxBackend
from assay.selftest.checks import requirement
from assay.selftest.programs import (
    HEARTBEAT,
    ORDINARY,
    TEN_THAT_WAIT,
    beats_go_on,
    describe_cell,
    expect_cell,
    open_session,
    python,
    refused,
    run_in,
    run_well,
    value_in,
)

_FOREVER = "import time\nprint('ready', flush=True)\nx = 'lost'\nwhile True:\n    time.sleep(0.01)"


@requirement
async def variables_persist_between_cells(interpreter: Interpreter) -> None:
    await run_in(interpreter, "import math\ndef area(r):\n    return math.pi * r * r\nr = 2")
    await run_in(interpreter, "class Circle:\n    pass\nr += 1")

    assert await value_in(interpreter, "round(area(r), 2), Circle.__name__") == (
        "(28.27, 'Circle')"
    )


@requirement
async def cells_are_numbered_from_one(interpreter: Interpreter) -> None:
    numbers = [(await interpreter.run_cell(source)).number for source in ("1", "1/0", "2")]

    assert numbers == [1, 2, 3]


@requirement
async def an_exception_ends_a_cell_and_keeps_its_state(interpreter: Interpreter) -> None:
    result = await interpreter.run_cell("x = 1\nx = x / 0\nx = 3")

    expect_cell(result, state="kept", exit_code=1, reason=Reason.COMPLETED)
    assert not result.succeeded
    assert result.error is not None, describe_cell(result)
    assert (result.error.name, result.error.message) == (
        "ZeroDivisionError",
        "division by zero",
    )
    assert await value_in(interpreter, "x") == "1"


@requirement
async def a_call_to_exit_ends_the_cell_and_not_the_interpreter(interpreter: Interpreter) -> None:
    result = await interpreter.run_cell("import sys\nx = 5\nsys.exit(3)\nx = 6")

    expect_cell(result, exit_code=3, state="kept")
    assert await value_in(interpreter, "x") == "5"


@requirement
async def only_a_cell_that_times_out_is_lost(interpreter: Interpreter) -> None:
    await run_in(interpreter, "x = 'kept'")
    result = await interpreter.run_cell(_FOREVER, timeout_s=0.5)

    expect_cell(result, reason=Reason.TIMED_OUT, limits_hit=("wall_s",), stdout="ready\n")
    assert result.state == "rolled_back", describe_cell(result)
    assert await value_in(interpreter, "x") == "'kept'"


@requirement
async def only_a_cell_that_crashes_is_lost(interpreter: Interpreter) -> None:
    await run_in(interpreter, "import ctypes, os\nx = 'kept'")
    for crash, number in (("ctypes.string_at(0)", 11), ("os.kill(os.getpid(), 9)", 9)):
        result = await interpreter.run_cell(f"x = 'lost'\n{crash}")

        expect_cell(result, reason=Reason.SIGNALLED, signal=number, state="rolled_back")
        assert await value_in(interpreter, "x") == "'kept'"


@requirement
async def a_cell_that_calls_os_exit_is_rolled_back(interpreter: Interpreter) -> None:
    await run_in(interpreter, "import os\nx = 'kept'")
    result = await interpreter.run_cell("x = 'lost'\nos._exit(4)")

    expect_cell(result, exit_code=4, state="rolled_back")
    assert await value_in(interpreter, "x") == "'kept'"


@requirement(limits=replace(ORDINARY, memory_mb=160))
async def only_a_cell_that_exceeds_memory_is_lost(interpreter: Interpreter) -> None:
    await run_in(interpreter, "x = 'kept'\nkept = bytearray(b'x') * (16 << 20)")
    result = await interpreter.run_cell("x = 'lost'\nmore = bytearray(b'x') * (600 << 20)")

    assert result.execution.reason is Reason.OUT_OF_MEMORY, describe_cell(result)
    assert "memory_mb" in result.execution.limits_hit, describe_cell(result)
    assert result.state == "rolled_back", describe_cell(result)
    assert await value_in(interpreter, "x, len(kept) >> 20") == "('kept', 16)"


@requirement(limits=replace(ORDINARY, memory_mb=160))
async def memory_counts_for_all_cells_together(interpreter: Interpreter) -> None:
    endings: list[Reason] = []
    for number in range(6):
        result = await interpreter.run_cell(f"held_{number} = bytearray(b'x') * (40 << 20)")
        endings.append(result.execution.reason)

    assert Reason.OUT_OF_MEMORY in endings, str(endings)
    assert endings[0] is Reason.COMPLETED, str(endings)
    assert endings.count(Reason.COMPLETED) <= 4, f"more was kept than fits: {endings}"


@requirement
async def many_small_processes_of_a_cell_need_little_memory(backend: SandboxBackend) -> None:
    limits = replace(ORDINARY, memory_mb=128, processes=32)
    async with open_session(backend, limits) as interpreter:
        await run_in(interpreter, TEN_THAT_WAIT)


@requirement(limits=replace(ORDINARY, cpu_s=0.5))
async def only_a_cell_that_exceeds_cpu_time_is_lost(interpreter: Interpreter) -> None:
    await run_in(interpreter, "x = 'kept'")
    result = await interpreter.run_cell("x = 'lost'\nwhile True: pass")

    expect_cell(result, reason=Reason.CPU_TIME, state="rolled_back")
    assert await value_in(interpreter, "x") == "'kept'"


@requirement(limits=replace(ORDINARY, output_bytes=1000))
async def only_a_cell_that_floods_its_output_is_lost(interpreter: Interpreter) -> None:
    await run_in(interpreter, "x = 'kept'")
    result = await interpreter.run_cell("while True: print('y' * 1000)")

    assert result.execution.reason is Reason.OUTPUT_LIMIT, describe_cell(result)
    assert len(result.execution.stdout_bytes) == 1000, describe_cell(result)
    assert await value_in(interpreter, "x") == "'kept'"


@requirement(limits=replace(ORDINARY, output_bytes=10))
async def output_is_counted_for_each_cell(interpreter: Interpreter) -> None:
    first = await interpreter.run_cell("print('a' * 20)")
    second = await interpreter.run_cell("print('b', end='')")

    expect_cell(first, stdout="a" * 10, stdout_dropped_bytes=11)
    expect_cell(second, stdout="b", truncated=False)


@requirement
async def output_arrives_while_a_cell_runs(interpreter: Interpreter) -> None:
    heard: list[bytes] = []
    first = anyio.Event()

    def hear(chunk: OutputChunk) -> None:
        heard.append(chunk.data)
        first.set()

    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await interpreter.run_cell(_FOREVER, on_output=hear)

        tasks.start_soon(run)
        with anyio.fail_after(20):
            await first.wait()
        await interpreter.interrupt()

    assert b"".join(heard) == b"ready\n"


async def _stopped_by(stop: Callable[[], Awaitable[None]], interpreter: Interpreter) -> CellResult:
    """Run an endless cell, and stop it once it runs."""
    results: list[CellResult] = []
    running = anyio.Event()

    async def run() -> None:
        results.append(await interpreter.run_cell(_FOREVER, on_output=lambda _: running.set()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(20):
            await running.wait()
        await stop()
    return results[0]


@requirement
async def only_the_interrupted_cell_is_lost(interpreter: Interpreter) -> None:
    await run_in(interpreter, "x = 'kept'")
    await interpreter.interrupt()
    result = await _stopped_by(interpreter.interrupt, interpreter)

    expect_cell(result, reason=Reason.CANCELLED, state="rolled_back")
    assert await value_in(interpreter, "x") == "'kept'"


@requirement
async def a_cancelled_task_ends_its_cell(interpreter: Interpreter) -> None:
    await run_in(interpreter, "x = 'kept'")
    with anyio.move_on_after(0.5) as waiting:
        await interpreter.run_cell(_FOREVER)

    assert waiting.cancelled_caught
    assert await value_in(interpreter, "x") == "'kept'"


@requirement
async def cancelling_a_sandbox_ends_the_cells_in_it(
    sandbox: Sandbox, interpreter: Interpreter
) -> None:
    result = await _stopped_by(sandbox.cancel, interpreter)

    assert result.execution.reason is Reason.CANCELLED, describe_cell(result)
    assert await value_in(interpreter, "6 * 7") == "42"


@requirement
async def processes_of_a_cell_end_with_it(sandbox: Sandbox, interpreter: Interpreter) -> None:
    source = f"{HEARTBEAT}\nif os.fork() == 0:\n    os.setsid()\n    beat_forever()\nawait_a_beat()"
    await run_in(interpreter, source)
    assert not await beats_go_on(sandbox), "a process outlived its cell"
    assert await value_in(interpreter, "6 * 7") == "42"


@requirement
async def threads_end_with_their_cell(sandbox: Sandbox, interpreter: Interpreter) -> None:
    source = f"""{HEARTBEAT}
import threading
thread = threading.Thread(target=beat_forever, daemon=True)
thread.start()
await_a_beat()
x = 'kept'
"""
    await run_in(interpreter, source)
    assert not await beats_go_on(sandbox), "a thread outlived its cell"
    assert await value_in(interpreter, "x, threading.active_count()") == "('kept', 1)"


@requirement
async def cells_take_turns(interpreter: Interpreter) -> None:
    await run_in(interpreter, "import time\nlog = []")
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(
                run_in, interpreter, "log.append('in')\ntime.sleep(0.05)\nlog.append('out')"
            )

    assert await value_in(interpreter, "log == ['in', 'out'] * 3") == "True"


@requirement
async def standard_input_of_a_cell_is_empty(interpreter: Interpreter) -> None:
    result = await interpreter.run_cell("input()")

    assert result.error is not None, describe_cell(result)
    assert result.error.name == "EOFError", describe_cell(result)


@requirement
async def cells_and_programs_share_the_workspace(sandbox: Sandbox) -> None:
    await sandbox.write_file(PurePosixPath("mine.py"), b"number = 41\n")
    async with sandbox.open_interpreter() as interpreter:
        await run_in(interpreter, "import mine\nopen('out', 'w').write(str(mine.number + 1))")

        assert await run_well(sandbox, "print(open('out').read())") == "42\n"


@requirement
async def files_of_a_lost_cell_remain(sandbox: Sandbox) -> None:
    async with sandbox.open_interpreter() as interpreter:
        await interpreter.run_cell("open('out', 'w').write('x')\nimport os\nos._exit(1)")

    assert await sandbox.read_file(PurePosixPath("out")) == b"x"


@requirement
async def two_interpreters_of_a_sandbox_share_no_variables(sandbox: Sandbox) -> None:
    async with sandbox.open_interpreter() as one, sandbox.open_interpreter() as two:
        await run_in(one, "x = 1")
        await run_in(two, "x = 2")

        assert (await value_in(one, "x"), await value_in(two, "x")) == ("1", "2")


@requirement
async def a_seeded_random_generator_continues_between_cells(interpreter: Interpreter) -> None:
    await run_in(interpreter, "import random\nrandom.seed(7)\nfirst = random.random()")

    assert (
        await value_in(interpreter, "random.Random(7).random() == first, random.random() != first")
        == "(True, True)"
    )
    assert (
        await value_in(
            interpreter,
            "r = random.Random(7); r.random(); r.random(); r.random() == random.random()",
        )
        == "True"
    )


@requirement
async def a_closed_interpreter_refuses_cells(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        async with sandbox.open_interpreter() as interpreter:
            await run_in(interpreter, "x = 1")
        error = await refused(SandboxUnavailableError, interpreter.run_cell("x"))

        assert error.dispatch == "never_started"
        assert (await sandbox.run(python("print(6 * 7)"))).stdout == "42\n"
    await refused(SandboxUnavailableError, interpreter.run_cell("x"))


@requirement
async def an_interpreter_that_kills_itself_is_reported_as_lost(sandbox: Sandbox) -> None:
    async with sandbox.open_interpreter() as interpreter:
        # If another process under a different user sends the result, the kill may end that
        # process too; the remaining result must be correct.
        try:
            result = await interpreter.run_cell("import os\nos.kill(-1, 9)\nx = 1")
        except SandboxUnavailableError:
            await refused(SandboxUnavailableError, interpreter.run_cell("6 * 7"))
        else:
            assert result.state == "kept" or not result.succeeded, describe_cell(result)
    assert (await sandbox.run(python("print(6 * 7)"))).stdout == "42\n"


@requirement(needs_branch=True)
async def a_branch_starts_with_all_variables_and_diverges(interpreter: Interpreter) -> None:
    await run_in(interpreter, "x = ['common']")
    async with interpreter.branch() as branch:
        await run_in(branch, "x.append('branch')")
        await run_in(interpreter, "x.append('trunk')")

        assert await value_in(branch, "x") == "['common', 'branch']"
    assert await value_in(interpreter, "x") == "['common', 'trunk']"
    await refused(SandboxUnavailableError, branch.run_cell("x"))


@requirement(needs_branch=True)
async def a_failing_branch_does_not_affect_its_parent(interpreter: Interpreter) -> None:
    await run_in(interpreter, "x = 'kept'")
    async with interpreter.branch() as branch:
        lost = await branch.run_cell("import os\nos.kill(os.getpid(), 11)")
        timed_out = await branch.run_cell("while True:\n    pass", timeout_s=0.3)

        assert lost.state == timed_out.state == "rolled_back"
        assert await value_in(branch, "x") == "'kept'"
        assert await value_in(interpreter, "x") == "'kept'"


@requirement(needs_branch=True)
async def branches_start_while_cells_of_other_branches_end(interpreter: Interpreter) -> None:
    async with interpreter.branch() as other:
        await run_in(interpreter, "x = 6")

        async def keep_busy() -> None:
            for _ in range(12):
                await run_in(other, "import os, time\nif os.fork() == 0:\n    time.sleep(60)")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_busy)
            for _ in range(12):
                async with interpreter.branch() as branch:
                    assert await value_in(branch, "x * 7") == "42"


@requirement(needs_branch=True)
async def branches_run_at_the_same_time(interpreter: Interpreter) -> None:
    await run_in(
        interpreter,
        """
        import os, time
        def meet(mine, other):
            open(mine, "w").close()
            while not os.path.exists(other):
                time.sleep(0.01)
            print(mine)
        """,
    )
    heard: dict[str, str] = {}

    async def run(which: Interpreter, mine: str, other: str) -> None:
        heard[mine] = (await run_in(which, f"meet({mine!r}, {other!r})")).execution.stdout

    async with interpreter.branch() as branch, anyio.create_task_group() as tasks:
        tasks.start_soon(run, interpreter, "a", "b")
        tasks.start_soon(run, branch, "b", "a")

    assert heard == {"a": "a\n", "b": "b\n"}, str(heard)
