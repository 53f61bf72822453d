"""Requirements for interpreters: the state that a cell passes to the next, and its loss.

Branches are independent copies of an interpreter.
"""

from dataclasses import replace
from pathlib import PurePosixPath

import anyio

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import CellResult, OutputChunk, Reason
from assay.contracts.ports import Interpreter, SandboxBackend
from assay.selftest.conformance.requirement import promise
from assay.selftest.programs import (
    HEARTBEAT,
    ORDINARY,
    TEN_THAT_WAIT,
    beats_go_on,
    describe_cell,
    open_session,
    python,
    refused,
    run_in,
    run_well,
    value_in,
)

_FOREVER = "import time\nprint('ready', flush=True)\nx = 'lost'\nwhile True:\n    time.sleep(0.01)"


@promise
async def variables_live_on_from_cell_to_cell(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
        await run_in(interpreter, "import math\ndef area(r):\n    return math.pi * r * r\nr = 2")
        await run_in(interpreter, "class Circle:\n    pass\nr += 1")

        assert await value_in(interpreter, "round(area(r), 2), Circle.__name__") == (
            "(28.27, 'Circle')"
        )


@promise
async def cells_are_numbered_from_one(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
        numbers = [(await interpreter.run_cell(source)).number for source in ("1", "1/0", "2")]

        assert numbers == [1, 2, 3]


@promise
async def an_exception_ends_a_cell_and_keeps_its_state(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
        result = await interpreter.run_cell("x = 1\nx = x / 0\nx = 3")

        assert result.state == "kept", describe_cell(result)
        assert result.execution.exit_code == 1, describe_cell(result)
        assert result.execution.reason is Reason.COMPLETED, describe_cell(result)
        assert not result.succeeded
        assert result.error is not None, describe_cell(result)
        assert (result.error.name, result.error.message) == (
            "ZeroDivisionError",
            "division by zero",
        )
        assert await value_in(interpreter, "x") == "1"


@promise
async def a_call_to_exit_ends_the_cell_and_not_the_interpreter(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
        result = await interpreter.run_cell("import sys\nx = 5\nsys.exit(3)\nx = 6")

        assert result.execution.exit_code == 3, describe_cell(result)
        assert result.state == "kept", describe_cell(result)
        assert await value_in(interpreter, "x") == "5"


@promise
async def a_cell_that_takes_too_long_is_lost_alone(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
        await run_in(interpreter, "x = 'kept'")
        result = await interpreter.run_cell(_FOREVER, timeout_s=0.5)

        assert result.execution.reason is Reason.TIMED_OUT, describe_cell(result)
        assert result.execution.limits_hit == ("wall_s",), describe_cell(result)
        assert result.execution.stdout == "ready\n", describe_cell(result)
        assert result.state == "rolled_back", describe_cell(result)
        assert await value_in(interpreter, "x") == "'kept'"


@promise
async def a_cell_that_crashes_is_lost_alone(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
        await run_in(interpreter, "import ctypes, os\nx = 'kept'")
        for crash, number in (("ctypes.string_at(0)", 11), ("os.kill(os.getpid(), 9)", 9)):
            result = await interpreter.run_cell(f"x = 'lost'\n{crash}")

            assert result.execution.reason is Reason.SIGNALLED, describe_cell(result)
            assert result.execution.signal == number, describe_cell(result)
            assert result.state == "rolled_back", describe_cell(result)
            assert await value_in(interpreter, "x") == "'kept'"


@promise
async def a_cell_that_leaves_at_once_is_rolled_back(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
        await run_in(interpreter, "import os\nx = 'kept'")
        result = await interpreter.run_cell("x = 'lost'\nos._exit(4)")

        assert result.execution.exit_code == 4, describe_cell(result)
        assert result.state == "rolled_back", describe_cell(result)
        assert await value_in(interpreter, "x") == "'kept'"


@promise
async def a_cell_that_takes_all_memory_is_lost_alone(backend: SandboxBackend) -> None:
    async with open_session(backend, replace(ORDINARY, memory_mb=160)) as interpreter:
        await run_in(interpreter, "x = 'kept'\nkept = bytearray(b'x') * (16 << 20)")
        result = await interpreter.run_cell("x = 'lost'\nmore = bytearray(b'x') * (600 << 20)")

        assert result.execution.reason is Reason.OUT_OF_MEMORY, describe_cell(result)
        assert "memory_mb" in result.execution.limits_hit, describe_cell(result)
        assert result.state == "rolled_back", describe_cell(result)
        assert await value_in(interpreter, "x, len(kept) >> 20") == "('kept', 16)"


@promise
async def memory_counts_for_all_cells_together(backend: SandboxBackend) -> None:
    async with open_session(backend, replace(ORDINARY, memory_mb=160)) as interpreter:
        endings: list[Reason] = []
        for number in range(6):
            result = await interpreter.run_cell(f"held_{number} = bytearray(b'x') * (40 << 20)")
            endings.append(result.execution.reason)

        assert Reason.OUT_OF_MEMORY in endings, str(endings)
        assert endings[0] is Reason.COMPLETED, str(endings)
        assert endings.count(Reason.COMPLETED) <= 4, f"more was kept than fits: {endings}"


@promise
async def many_small_processes_of_a_cell_need_little_memory(backend: SandboxBackend) -> None:
    limits = replace(ORDINARY, memory_mb=128, processes=32)
    async with open_session(backend, limits) as interpreter:
        await run_in(interpreter, TEN_THAT_WAIT)


@promise
async def a_cell_that_burns_the_processor_is_lost_alone(backend: SandboxBackend) -> None:
    async with open_session(backend, replace(ORDINARY, cpu_s=0.5)) as interpreter:
        await run_in(interpreter, "x = 'kept'")
        result = await interpreter.run_cell("x = 'lost'\nwhile True: pass")

        assert result.execution.reason is Reason.CPU_TIME, describe_cell(result)
        assert result.state == "rolled_back", describe_cell(result)
        assert await value_in(interpreter, "x") == "'kept'"


@promise
async def a_cell_that_floods_its_output_is_lost_alone(backend: SandboxBackend) -> None:
    async with open_session(backend, replace(ORDINARY, output_bytes=1000)) as interpreter:
        await run_in(interpreter, "x = 'kept'")
        result = await interpreter.run_cell("while True: print('y' * 1000)")

        assert result.execution.reason is Reason.OUTPUT_LIMIT, describe_cell(result)
        assert len(result.execution.stdout_bytes) == 1000, describe_cell(result)
        assert await value_in(interpreter, "x") == "'kept'"


@promise
async def output_is_counted_for_each_cell(backend: SandboxBackend) -> None:
    async with open_session(backend, replace(ORDINARY, output_bytes=10)) as interpreter:
        first = await interpreter.run_cell("print('a' * 20)")
        second = await interpreter.run_cell("print('b', end='')")

        assert first.execution.stdout == "a" * 10, describe_cell(first)
        assert first.execution.stdout_dropped_bytes == 11, describe_cell(first)
        assert second.execution.stdout == "b", describe_cell(second)
        assert not second.execution.truncated, describe_cell(second)


@promise
async def output_arrives_while_a_cell_runs(backend: SandboxBackend) -> None:
    heard: list[bytes] = []
    first = anyio.Event()

    def hear(chunk: OutputChunk) -> None:
        heard.append(chunk.data)
        first.set()

    async with open_session(backend) as interpreter, anyio.create_task_group() as tasks:

        async def run() -> None:
            await interpreter.run_cell(_FOREVER, on_output=hear)

        tasks.start_soon(run)
        with anyio.fail_after(20):
            await first.wait()
        await interpreter.interrupt()

    assert b"".join(heard) == b"ready\n"


async def _interrupted(interpreter: Interpreter) -> CellResult:
    """Run an endless cell, and interrupt it once it runs."""
    results: list[CellResult] = []
    running = anyio.Event()

    async def run() -> None:
        results.append(await interpreter.run_cell(_FOREVER, on_output=lambda _: running.set()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(20):
            await running.wait()
        await interpreter.interrupt()
    return results[0]


@promise
async def an_interrupted_cell_is_lost_alone(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
        await run_in(interpreter, "x = 'kept'")
        await interpreter.interrupt()
        result = await _interrupted(interpreter)

        assert result.execution.reason is Reason.CANCELLED, describe_cell(result)
        assert result.state == "rolled_back", describe_cell(result)
        assert await value_in(interpreter, "x") == "'kept'"


@promise
async def a_cancelled_task_ends_its_cell(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
        await run_in(interpreter, "x = 'kept'")
        with anyio.move_on_after(0.5) as waiting:
            await interpreter.run_cell(_FOREVER)

        assert waiting.cancelled_caught
        assert await value_in(interpreter, "x") == "'kept'"


@promise
async def cancelling_a_sandbox_ends_the_cells_in_it(backend: SandboxBackend) -> None:
    results: list[CellResult] = []
    running = anyio.Event()
    async with (
        backend.open_sandbox(ORDINARY) as sandbox,
        sandbox.open_interpreter() as interpreter,
    ):

        async def run() -> None:
            results.append(await interpreter.run_cell(_FOREVER, on_output=lambda _: running.set()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            with anyio.fail_after(20):
                await running.wait()
            await sandbox.cancel()
        assert results[0].execution.reason is Reason.CANCELLED, describe_cell(results[0])
        assert await value_in(interpreter, "6 * 7") == "42"


@promise
async def what_a_cell_starts_ends_with_it(backend: SandboxBackend) -> None:
    source = f"{HEARTBEAT}\nif os.fork() == 0:\n    os.setsid()\n    beat_forever()\nawait_a_beat()"
    async with (
        backend.open_sandbox(ORDINARY) as sandbox,
        sandbox.open_interpreter() as interpreter,
    ):
        await run_in(interpreter, source)
        assert not await beats_go_on(sandbox), "a process outlived its cell"
        assert await value_in(interpreter, "6 * 7") == "42"


@promise
async def threads_end_with_their_cell(backend: SandboxBackend) -> None:
    source = f"""{HEARTBEAT}
import threading
thread = threading.Thread(target=beat_forever, daemon=True)
thread.start()
await_a_beat()
x = 'kept'
"""
    async with (
        backend.open_sandbox(ORDINARY) as sandbox,
        sandbox.open_interpreter() as interpreter,
    ):
        await run_in(interpreter, source)
        assert not await beats_go_on(sandbox), "a thread outlived its cell"
        assert await value_in(interpreter, "x, threading.active_count()") == "('kept', 1)"


@promise
async def cells_take_turns(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
        await run_in(interpreter, "import time\nlog = []")
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(
                    run_in, interpreter, "log.append('in')\ntime.sleep(0.05)\nlog.append('out')"
                )

        assert await value_in(interpreter, "log == ['in', 'out'] * 3") == "True"


@promise
async def standard_input_of_a_cell_is_empty(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
        result = await interpreter.run_cell("input()")

        assert result.error is not None, describe_cell(result)
        assert result.error.name == "EOFError", describe_cell(result)


@promise
async def cells_and_programs_share_the_workspace(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(PurePosixPath("mine.py"), b"number = 41\n")
        async with sandbox.open_interpreter() as interpreter:
            await run_in(interpreter, "import mine\nopen('out', 'w').write(str(mine.number + 1))")

            assert await run_well(sandbox, "print(open('out').read())") == "42\n"


@promise
async def files_of_a_lost_cell_stay(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        async with sandbox.open_interpreter() as interpreter:
            await interpreter.run_cell("open('out', 'w').write('x')\nimport os\nos._exit(1)")

        assert await sandbox.read_file(PurePosixPath("out")) == b"x"


@promise
async def two_interpreters_of_a_sandbox_have_variables_of_their_own(
    backend: SandboxBackend,
) -> None:
    async with (
        backend.open_sandbox(ORDINARY) as sandbox,
        sandbox.open_interpreter() as one,
        sandbox.open_interpreter() as two,
    ):
        await run_in(one, "x = 1")
        await run_in(two, "x = 2")

        assert (await value_in(one, "x"), await value_in(two, "x")) == ("1", "2")


@promise
async def chance_goes_on_where_it_was_seeded(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
        await run_in(interpreter, "import random\nrandom.seed(7)\nfirst = random.random()")

        assert (
            await value_in(
                interpreter, "random.Random(7).random() == first, random.random() != first"
            )
            == "(True, True)"
        )
        assert (
            await value_in(
                interpreter,
                "r = random.Random(7); r.random(); r.random(); r.random() == random.random()",
            )
            == "True"
        )


@promise
async def a_closed_interpreter_refuses_cells(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        async with sandbox.open_interpreter() as interpreter:
            await run_in(interpreter, "x = 1")
        error = await refused(SandboxUnavailableError, interpreter.run_cell("x"))

        assert error.dispatch == "never_started"
        assert (await sandbox.run(python("print(6 * 7)"))).stdout == "42\n"
    await refused(SandboxUnavailableError, interpreter.run_cell("x"))


@promise
async def an_interpreter_that_kills_itself_is_gone_and_says_so(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
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


@promise(needs_branch=True)
async def a_branch_begins_with_all_variables_and_goes_its_own_way(
    backend: SandboxBackend,
) -> None:
    async with open_session(backend) as interpreter:
        await run_in(interpreter, "x = ['common']")
        async with interpreter.branch() as branch:
            await run_in(branch, "x.append('branch')")
            await run_in(interpreter, "x.append('trunk')")

            assert await value_in(branch, "x") == "['common', 'branch']"
        assert await value_in(interpreter, "x") == "['common', 'trunk']"
        await refused(SandboxUnavailableError, branch.run_cell("x"))


@promise(needs_branch=True)
async def a_branch_that_fails_leaves_the_trunk_alone(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
        await run_in(interpreter, "x = 'kept'")
        async with interpreter.branch() as branch:
            lost = await branch.run_cell("import os\nos.kill(os.getpid(), 11)")
            timed_out = await branch.run_cell("while True:\n    pass", timeout_s=0.3)

            assert lost.state == timed_out.state == "rolled_back"
            assert await value_in(branch, "x") == "'kept'"
            assert await value_in(interpreter, "x") == "'kept'"


@promise(needs_branch=True)
async def branches_begin_while_cells_of_others_come_to_their_ends(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter, interpreter.branch() as other:
        await run_in(interpreter, "x = 6")

        async def keep_busy() -> None:
            for _ in range(12):
                await run_in(other, "import os, time\nif os.fork() == 0:\n    time.sleep(60)")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_busy)
            for _ in range(12):
                async with interpreter.branch() as branch:
                    assert await value_in(branch, "x * 7") == "42"


@promise(needs_branch=True)
async def branches_run_at_the_same_time(backend: SandboxBackend) -> None:
    async with open_session(backend) as interpreter:
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
