"""Requirements for start and end: overlaps, shared state, and complete cleanup."""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import PurePosixPath

import anyio

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import ExecutionResult, Isolation, OutputChunk, Program, Reason
from assay.contracts.ports import OnOutput, Sandbox, SandboxBackend
from assay.selftest.checks import requirement
from assay.selftest.programs import (
    BEAT_AND_SAY_SO,
    HEARTBEAT,
    ORDINARY,
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

_NOTE = PurePosixPath("note")
_READY_THEN_SLEEP = python("import time; print('ready', flush=True); time.sleep(600)")
_BEAT = python(BEAT_AND_SAY_SO)


def _set_when_ready(seen: anyio.Event) -> OnOutput:
    def listen(chunk: OutputChunk) -> None:
        if b"ready" in chunk.data:
            seen.set()

    return listen


async def _run_into(
    results: list[ExecutionResult], sandbox: Sandbox, program: Program, seen: anyio.Event
) -> None:
    results.append(await sandbox.run(program, on_output=_set_when_ready(seen)))


async def _wait_for(*events: anyio.Event) -> None:
    with anyio.fail_after(15):
        for event in events:
            await event.wait()


@requirement
async def a_fresh_sandbox_is_empty(sandbox: Sandbox) -> None:
    source = "import os, tempfile; print(os.listdir(), os.listdir(tempfile.gettempdir()))"
    assert await sandbox.list_files() == ()
    seen = await run_well(sandbox, source)
    assert seen == "[] []\n", f"a program finds {seen}"


@requirement
async def files_persist_between_executions(sandbox: Sandbox) -> None:
    write = """
        import tempfile
        open("note", "w").write("workspace")
        open(tempfile.gettempdir() + "/note", "w").write("temporary")
    """
    read = """
        import tempfile
        print(open("note").read(), open(tempfile.gettempdir() + "/note").read())
    """
    await run_well(sandbox, write)
    assert await run_well(sandbox, read) == "workspace temporary\n"


@requirement
async def two_sandboxes_share_nothing(backend: SandboxBackend) -> None:
    name = f"note-{secrets.token_hex(8)}"
    write = f"""
        import os, tempfile
        for place in [".", tempfile.gettempdir(), "/dev/shm"]:
            try:
                open(os.path.join(place, "{name}"), "w").write("mine")
            except OSError:
                pass
    """
    look = f"""
        import os, tempfile
        places = [".", tempfile.gettempdir(), "/dev/shm"]
        print([place for place in places if os.path.exists(os.path.join(place, "{name}"))])
    """
    async with (
        backend.open_sandbox(ORDINARY) as first,
        backend.open_sandbox(ORDINARY) as second,
    ):
        await run_well(first, write)

        assert await second.list_files() == ()
        shared = await run_well(second, look)
        assert shared == "[]\n", f"both see {shared}"
        assert (await first.read_file(PurePosixPath(name))) == b"mine"


@requirement
async def executions_that_overlap_share_the_workspace(sandbox: Sandbox) -> None:
    meet = """
        import os, sys, time
        mine, theirs = sys.argv[1:]
        open(mine, "w").close()
        while not os.path.exists(theirs):
            time.sleep(0.01)
        print("met", theirs)
    """
    results: list[ExecutionResult] = []
    async with anyio.create_task_group() as tasks:
        for args in (("a", "b"), ("b", "a")):
            program = replace(python(meet), args=args)
            tasks.start_soon(_run_into, results, sandbox, program, anyio.Event())

    assert sorted(result.stdout for result in results) == ["met a\n", "met b\n"]


@requirement(needs=Isolation.ISOLATED)
async def executions_that_overlap_do_not_see_each_other(sandbox: Sandbox) -> None:
    look = """
        import os
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                print(open(f"/proc/{pid}/cmdline").read().replace("\\0", " "))
            except OSError:
                pass
    """
    seen = anyio.Event()
    results: list[ExecutionResult] = []
    processes = ""
    async with anyio.create_task_group() as tasks:
        sleeper = shell("echo ready; sleep 543.21")
        tasks.start_soon(_run_into, results, sandbox, sleeper, seen)
        await _wait_for(seen)
        processes = await run_well(sandbox, look)
        await sandbox.cancel()

    assert processes, "a program sees no process, not even itself"
    assert "543.21" not in processes, f"another execution's process is visible:\n{processes:.500}"


@requirement
async def fifty_executions_in_parallel_give_correct_results(backend: SandboxBackend) -> None:
    outputs: dict[int, str] = {}

    async def run(sandbox: Sandbox, number: int) -> None:
        outputs[number] = await run_well(sandbox, f"print({number} ** 2)")

    async with (
        backend.open_sandbox(ORDINARY) as first,
        backend.open_sandbox(ORDINARY) as second,
        anyio.create_task_group() as tasks,
    ):
        for number in range(50):
            tasks.start_soon(run, first if number % 2 else second, number)

    wrong = {n: outputs.get(n) for n in range(50) if outputs.get(n) != f"{n * n}\n"}
    assert not wrong, f"wrong or lost: {wrong}"


@requirement
async def twenty_sandboxes_in_parallel_give_correct_results(backend: SandboxBackend) -> None:
    outputs: dict[int, str] = {}

    async def run(number: int) -> None:
        async with backend.open_sandbox(ORDINARY) as sandbox:
            await sandbox.write_file(_NOTE, str(number).encode())
            outputs[number] = await run_well(sandbox, "print(open('note').read())")

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(run, number)

    assert outputs == {number: f"{number}\n" for number in range(20)}


@requirement
async def nothing_runs_after_a_program_has_ended(sandbox: Sandbox) -> None:
    source = f"""{HEARTBEAT}
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        beat_forever()
    os._exit(0)
os.wait()
await_a_beat()
print("the program is done")
"""
    result = await run_expecting(sandbox, python(source), succeeded=True)
    assert result.duration_s < 10, f"it was waited for: {describe(result)}"
    assert not await beats_go_on(sandbox), "a process in the background lives on"


@requirement
async def cancel_ends_running_programs(sandbox: Sandbox) -> None:
    ready = [anyio.Event(), anyio.Event()]
    results: list[ExecutionResult] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run_into, results, sandbox, _BEAT, ready[0])
        tasks.start_soon(_run_into, results, sandbox, _READY_THEN_SLEEP, ready[1])
        await _wait_for(*ready)
        await sandbox.cancel()

    for result in results:
        expect(result, reason=Reason.CANCELLED, exit_code=None)
        assert result.stdout == "ready\n", f"output was lost: {describe(result)}"
    assert not await beats_go_on(sandbox), "a cancelled program lives on"


@requirement
async def cancel_does_not_affect_other_sandboxes(backend: SandboxBackend) -> None:
    source = """
        import os, time
        print("ready", flush=True)
        while not os.path.exists("note"):
            time.sleep(0.01)
    """
    ready = [anyio.Event(), anyio.Event()]
    mine: list[ExecutionResult] = []
    others: list[ExecutionResult] = []
    async with backend.open_sandbox(ORDINARY) as one, backend.open_sandbox(ORDINARY) as other:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_run_into, mine, one, python(source), ready[0])
            tasks.start_soon(_run_into, others, other, python(source), ready[1])
            await _wait_for(*ready)
            await one.cancel()
            await other.write_file(_NOTE, b"")

        assert mine[0].reason is Reason.CANCELLED, describe(mine[0])
        assert others[0].succeeded, describe(others[0])


@requirement
async def cancel_does_not_affect_later_executions(sandbox: Sandbox) -> None:
    await sandbox.cancel()
    assert await run_well(sandbox, "print('first')") == "first\n"
    await sandbox.cancel()
    assert await run_well(sandbox, "print('second')") == "second\n"


@requirement
async def cancelling_the_task_kills_the_program(sandbox: Sandbox) -> None:
    seen = anyio.Event()
    results: list[ExecutionResult] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run_into, results, sandbox, _BEAT, seen)
        await _wait_for(seen)
        tasks.cancel_scope.cancel()

    assert results == [], "a cancelled task returned a result"
    assert not await beats_go_on(sandbox), "the program of a cancelled task lives on"
    assert await run_well(sandbox, "print('usable')") == "usable\n"


@requirement
async def closing_a_sandbox_ends_its_programs(backend: SandboxBackend) -> None:
    seen = anyio.Event()
    endings: list[ExecutionResult | SandboxUnavailableError] = []

    async def run(sandbox: Sandbox) -> None:
        try:
            endings.append(await sandbox.run(_READY_THEN_SLEEP, on_output=_set_when_ready(seen)))
        except SandboxUnavailableError as error:
            endings.append(error)

    with anyio.fail_after(20):
        # The group is outside: it waits for the execution after the sandbox was closed.
        async with anyio.create_task_group() as tasks, backend.open_sandbox(ORDINARY) as sandbox:
            tasks.start_soon(run, sandbox)
            await _wait_for(seen)

    match endings[0]:
        case SandboxUnavailableError(dispatch=dispatch):
            assert dispatch == "outcome_unknown", f"the program ran, yet dispatch is {dispatch!r}"
        case result:
            assert result.reason is Reason.CANCELLED, describe(result)


@requirement
async def a_closed_sandbox_runs_nothing(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        pass

    for program in (python("print('ran')"), shell("echo ran")):
        error = await refused(SandboxUnavailableError, sandbox.run(program))
        assert error.dispatch == "never_started", f"dispatch is {error.dispatch!r}"


@requirement
async def nothing_remains_of_a_closed_sandbox(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await run_well(sandbox, "open('note', 'w').write('old')")
        await sandbox.write_file(PurePosixPath("other"), b"old")

    async with backend.open_sandbox(ORDINARY) as sandbox:
        assert await sandbox.list_files() == ()


class _OwnError(Exception):
    """An error of the caller, not of the sandbox."""


def _fail(chunk: OutputChunk) -> None:
    raise _OwnError(chunk.stream)


@requirement
async def an_error_of_the_caller_is_not_swallowed(backend: SandboxBackend) -> None:
    async def use_and_fail() -> None:
        async with backend.open_sandbox(ORDINARY) as sandbox:
            await sandbox.write_file(_NOTE, b"")
            raise _OwnError

    assert await _fails(use_and_fail), "the sandbox swallowed an error of its user"
    result = await run_alone(backend, python("print('fine')"))
    assert result.stdout == "fine\n", describe(result)


@requirement
async def an_error_of_the_listener_is_not_swallowed(backend: SandboxBackend) -> None:
    async def run_and_fail() -> None:
        await run_alone(backend, python("print('hear')"), on_output=_fail)

    assert await _fails(run_and_fail), "the listener failed without an error report"
    result = await run_alone(backend, python("print('fine')"))
    assert result.stdout == "fine\n", describe(result)


async def _fails(act: Callable[[], Awaitable[None]]) -> bool:
    try:
        await act()
    except _OwnError:
        return True
    except BaseExceptionGroup as group:
        return group.subgroup(_OwnError) is not None
    return False
