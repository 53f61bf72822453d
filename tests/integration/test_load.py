"""Many at once, none waiting ready, and engines that die: the backend goes on."""

import os
import signal
from pathlib import Path, PurePosixPath

import anyio
import anyio.to_thread
import pytest

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import ExecutionResult, Limits, OutputChunk
from assay.contracts.ports import Sandbox, SandboxBackend
from tests.support.eventually import eventually
from tests.support.leftovers import engine_of
from tests.support.native import open_own, python

AT_ONCE = 200
FOREVER = python("print('started', flush=True)\nimport time\ntime.sleep(600)")
VICTIMS = ("launcher", "zygote")
either_victim = pytest.mark.parametrize("victim", VICTIMS)


async def test_two_hundred_executions_at_once_are_each_right_and_none_is_lost(
    runtime_dir: Path,
) -> None:
    results: dict[int, ExecutionResult] = {}

    async def run(backend: SandboxBackend, number: int) -> None:
        async with backend.open_sandbox(Limits(disk_mb=1)) as sandbox:
            results[number] = await sandbox.run(python(f"print({number} ** 2)"))

    async with open_own(runtime_dir) as backend, anyio.create_task_group() as clients:
        for number in range(AT_ONCE):
            clients.start_soon(run, backend, number)

    assert {number: result.stdout for number, result in results.items()} == {
        number: f"{number**2}\n" for number in range(AT_ONCE)
    }
    assert all(result.succeeded for result in results.values())


async def test_a_file_that_was_asked_for_before_its_sandbox_closed_is_not_read_elsewhere(
    runtime_dir: Path,
) -> None:
    name, found = PurePosixPath("name"), list[bytes]()
    threads = anyio.to_thread.current_default_thread_limiter()

    async def read(sandbox: Sandbox) -> None:
        found.append(await sandbox.read_file(name))

    async with open_own(runtime_dir) as backend, anyio.create_task_group() as tasks:
        opened = backend.open_sandbox(Limits())
        sandbox = await opened.__aenter__()
        await sandbox.write_file(name, b"ours")
        all_threads, threads.total_tokens = threads.total_tokens, 1
        async with threads:
            tasks.start_soon(read, sandbox)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(opened.__aexit__, None, None, None)
            await anyio.wait_all_tasks_blocked()
        threads.total_tokens = all_threads

    assert found == [b"ours"]


async def test_executions_at_once_in_one_sandbox_share_it_and_nothing_else(
    runtime_dir: Path,
) -> None:
    results: list[str] = []

    async def run(sandbox: Sandbox, number: int) -> None:
        source = f"import os; open('{number}', 'w').write('x'); print(os.getpid())"
        results.append((await sandbox.run(python(source))).stdout)

    async with (
        open_own(runtime_dir) as backend,
        backend.open_sandbox(Limits()) as sandbox,
    ):
        async with anyio.create_task_group() as clients:
            for number in range(20):
                clients.start_soon(run, sandbox, number)
        written = await sandbox.list_files()

    assert {str(entry.path) for entry in written} == {str(number) for number in range(20)}
    assert len(set(results)) == 1  # each is alone in a pid namespace of its own


async def test_without_a_pool_every_program_gets_a_process_made_for_it(runtime_dir: Path) -> None:

    async with open_own(runtime_dir, pool_size=0) as backend:
        async with backend.open_sandbox(Limits()) as sandbox:
            results = [await sandbox.run(python(f"print({number})")) for number in range(3)]
        assert await eventually(lambda: len(engine_of(runtime_dir).processes) == 3)

    assert [result.stdout for result in results] == ["0\n", "1\n", "2\n"]


async def kill(runtime_dir: Path, victim: str) -> None:
    """Kill a part of the engine and wait until all of it is dead."""
    engine = engine_of(runtime_dir)
    os.kill(getattr(engine, victim).pid, signal.SIGKILL)
    assert await eventually(lambda: not any(mark.alive for mark in engine.processes))


@either_victim
async def test_a_program_whose_engine_dies_has_an_unknown_outcome(
    runtime_dir: Path, victim: str
) -> None:
    started = anyio.Event()

    def notice(chunk: OutputChunk) -> None:
        assert chunk.data == b"started\n"
        started.set()

    async def kill_when_started() -> None:
        await started.wait()
        await kill(runtime_dir, victim)

    async with (
        open_own(runtime_dir) as backend,
        backend.open_sandbox(Limits()) as sandbox,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(kill_when_started)
        with anyio.fail_after(60), pytest.raises(SandboxUnavailableError) as caught:
            await sandbox.run(FOREVER, on_output=notice)

    assert caught.value.dispatch == "outcome_unknown"


@either_victim
async def test_a_program_for_a_dead_engine_was_never_started(
    runtime_dir: Path, victim: str
) -> None:

    async with open_own(runtime_dir) as backend, backend.open_sandbox(Limits()) as sandbox:
        await kill(runtime_dir, victim)

        with anyio.fail_after(60), pytest.raises(SandboxUnavailableError) as caught:
            await sandbox.run(python("print(1)"))

    assert caught.value.dispatch == "never_started"


@either_victim
async def test_the_next_sandbox_after_an_engine_died_has_an_engine_again(
    runtime_dir: Path, victim: str
) -> None:

    async with open_own(runtime_dir) as backend:
        async with backend.open_sandbox(Limits()) as sandbox:
            await sandbox.run(python("print(1)"))
        await kill(runtime_dir, victim)

        async with backend.open_sandbox(Limits()) as sandbox:
            result = await sandbox.run(python("print(2)"))

    assert result.stdout == "2\n"


@either_victim
async def test_an_engine_that_died_leaves_nothing_once_it_is_replaced(
    runtime_dir: Path, victim: str
) -> None:
    async with open_own(runtime_dir) as backend:
        dead = engine_of(runtime_dir)
        await kill(runtime_dir, victim)

        async with backend.open_sandbox(Limits()) as sandbox:
            await sandbox.run(python("print(2)"))

        assert await eventually(dead.is_gone), dead.left()
    assert await eventually(lambda: list(runtime_dir.iterdir()) == [])


async def test_a_listener_that_fails_ends_the_program_and_its_error_is_seen(
    runtime_dir: Path,
) -> None:

    def fail(chunk: OutputChunk) -> None:
        raise BrokenPipeError(chunk.stream)

    async with open_own(runtime_dir, pool_size=0) as backend:
        async with backend.open_sandbox(Limits()) as sandbox:
            with anyio.fail_after(60), pytest.raises(BrokenPipeError):
                await sandbox.run(FOREVER, on_output=fail)

            result = await sandbox.run(python("print(1)"))

        assert await eventually(lambda: len(engine_of(runtime_dir).processes) == 3)

    assert result.stdout == "1\n"
