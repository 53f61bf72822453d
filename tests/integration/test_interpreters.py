"""Interpreters end with what they live in, and the example of a session runs as it says."""

import os
import signal
import subprocess
import sys
from pathlib import Path, PurePosixPath

import anyio
import pytest

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import CellResult, Limits
from assay.sandbox.native.host import registry
from assay.sandbox.native.host.branch import BranchPipes, Report
from assay.selftest.conformance.cells import only_a_cell_that_exceeds_memory_is_lost
from tests.support.backends import TIERS, Tier, open_native
from tests.support.eventually import eventually
from tests.support.native import open_own, python
from tests.support.sources import ROOT


async def test_the_example_of_a_session_runs() -> None:
    process = await anyio.run_process(
        [sys.executable, str(ROOT / "examples" / "session.py")], stderr=subprocess.STDOUT
    )

    lines = process.stdout.decode().splitlines()
    assert lines[0] == "the sum is 285"
    assert lines[1].startswith("a figure of ")
    assert lines[2:] == [
        "the cell was timed_out and rolled_back",
        "squares still holds 10 numbers",
    ]


async def test_an_engine_that_dies_takes_its_interpreters_along(tmp_path: Path) -> None:
    async with (
        open_own(tmp_path) as backend,
        backend.open_sandbox(Limits()) as sandbox,
        sandbox.open_interpreter() as interpreter,
    ):
        await interpreter.run_cell("x = 1")
        (record,) = registry.read_records(tmp_path)
        assert record.launcher is not None
        os.kill(record.launcher.pid, signal.SIGKILL)

        endless = "while True: pass"
        with pytest.raises(SandboxUnavailableError), anyio.fail_after(60):
            await interpreter.run_cell(endless)


@pytest.mark.parametrize("tier", TIERS)
async def test_only_the_cell_is_lost_each_time_that_memory_runs_out(tier: Tier) -> None:
    async with open_native(tier) as backend:
        for _ in range(12):
            await only_a_cell_that_exceeds_memory_is_lost.run(backend)


async def test_closing_a_sandbox_ends_the_interpreters_in_it(tmp_path: Path) -> None:
    results: list[CellResult] = []
    running = anyio.Event()
    async with open_own(tmp_path) as backend, anyio.create_task_group() as tasks:
        opened = backend.open_sandbox(Limits())
        sandbox = await opened.__aenter__()
        session = sandbox.open_interpreter()
        interpreter = await session.__aenter__()

        async def run() -> None:
            source = "print('ready', flush=True)\nwhile True: pass"
            results.append(await interpreter.run_cell(source, on_output=lambda _: running.set()))

        tasks.start_soon(run)
        await running.wait()
        await opened.__aexit__(None, None, None)

        with pytest.raises(SandboxUnavailableError, match="closed"):
            await interpreter.run_cell("1")
        await session.__aexit__(None, None, None)
    assert results[0].execution.reason.value == "cancelled"


async def test_an_idle_interpreter_takes_no_turn(tmp_path: Path) -> None:
    async with (
        open_own(tmp_path, max_concurrent=1) as backend,
        backend.open_sandbox(Limits()) as sandbox,
        sandbox.open_interpreter() as one,
        sandbox.open_interpreter() as two,
    ):
        with anyio.fail_after(60):
            assert (await one.run_cell("1")).succeeded
            assert (await two.run_cell("1")).succeeded
            assert (await sandbox.run(python("print(1)"))).succeeded


async def test_a_branch_that_nobody_waits_for_any_more_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def processes() -> str:
        result = await interpreter.run_cell("sum(name.isdigit() for name in os.listdir('/proc'))")
        return result.outputs[0].text

    async def give_up(lineage: BranchPipes) -> Report:
        del lineage
        scope.cancel()
        await anyio.sleep_forever()
        raise AssertionError

    async with (
        open_own(tmp_path) as backend,
        backend.open_sandbox(Limits()) as sandbox,
        sandbox.open_interpreter() as interpreter,
    ):
        await interpreter.run_cell("import os")
        before = await processes()
        with monkeypatch.context() as patched, anyio.CancelScope() as scope:
            patched.setattr(BranchPipes, "report", give_up)
            async with interpreter.branch():
                pass
        assert scope.cancelled_caught

        counts = [await processes() for _ in range(20)]
        assert before in counts


_WAITS_FOR_A_FILE = """
import os
with open("/proc/self/comm", "w") as name:
    name.write("about-to-end")
print(flush=True)
while not os.path.exists("go"):
    pass
"""


async def test_a_cell_that_is_ended_when_it_is_just_done_is_lost_alone(tmp_path: Path) -> None:
    results: list[CellResult] = []
    running = anyio.Event()
    async with (
        open_own(tmp_path) as backend,
        backend.open_sandbox(Limits()) as sandbox,
        sandbox.open_interpreter() as interpreter,
    ):
        await interpreter.run_cell("x = 'kept'")

        async def run() -> None:
            cell = interpreter.run_cell(_WAITS_FOR_A_FILE, on_output=lambda _: running.set())
            results.append(await cell)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await running.wait()
            cell = _find_process("about-to-end")
            keeper = _parent(_parent(cell))
            os.kill(keeper, signal.SIGSTOP)
            await sandbox.write_file(PurePosixPath("go"), b"")
            assert await eventually(lambda: _stat(cell)[0] == "S")
            await interpreter.interrupt()
            # It hears of the end that is wanted and of the end that has come at the same time.
            os.kill(keeper, signal.SIGCONT)

        assert results[0].execution.reason.value == "cancelled"
        assert results[0].state == "rolled_back"
        (shown,) = (await interpreter.run_cell("x")).outputs
        assert shown.text == "'kept'"


def _find_process(name: str) -> int:
    (found,) = (
        path for path in Path("/proc").glob("[0-9]*/comm") if path.read_text() == f"{name}\n"
    )
    return int(found.parent.name)


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
