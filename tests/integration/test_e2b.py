"""The E2B backend on a service that speaks its protocol: keys, losses, labels, cells, leftovers."""

import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import PurePosixPath

import anyio
import pytest
from pydantic import SecretStr

from assay.contracts.errors import SandboxUnavailableError, UsageError
from assay.contracts.execution import Isolation, Limits, PythonCode, Reason, SandboxSpec
from assay.contracts.ports import Interpreter, Sandbox
from assay.sandbox.e2b import backend as cleanup
from assay.sandbox.e2b.backend import E2BBackend, open_e2b
from assay.sandbox.e2b.vm import connection_to
from tests.support.e2b_service.machine import GuestMachine
from tests.support.e2b_service.opening import StandIn, open_stand_in
from tests.support.eventually import eventually

LIMITS = Limits(wall_s=20)
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
async def stand_in() -> AsyncGenerator[StandIn]:
    async with open_stand_in() as opened:
        yield opened


@pytest.fixture
async def backend(stand_in: StandIn) -> AsyncGenerator[E2BBackend]:
    async with open_e2b(stand_in.settings) as opened:
        yield opened


@pytest.fixture
async def box(backend: E2BBackend) -> AsyncGenerator[Sandbox]:
    async with backend.open_sandbox(LIMITS) as sandbox:
        yield sandbox


@pytest.fixture
async def cells(box: Sandbox) -> AsyncGenerator[Interpreter]:
    async with box.open_interpreter() as interpreter:
        yield interpreter


def newest(stand_in: StandIn) -> GuestMachine:
    return stand_in.service.rented[next(reversed(stand_in.service.rented))].machine


async def open_with(stand_in: StandIn, **changes: object) -> None:
    async with (
        open_e2b(stand_in.with_settings(**changes)) as backend,
        backend.open_sandbox(LIMITS),
    ):
        raise AssertionError("it was opened")


async def test_a_wrong_key_is_said_before_anything_is_made(stand_in: StandIn) -> None:
    made = len(stand_in.service.created)

    with pytest.raises(UsageError, match="does not accept the key") as refusal:
        await open_with(stand_in, api_key=SecretStr("e2b_wrong"))

    assert "E2B_API_KEY" in refusal.value.hint
    assert "e2b_wrong" not in str(refusal.value) + refusal.value.hint
    assert len(stand_in.service.created) == made


async def test_without_a_key_nobody_is_asked(stand_in: StandIn) -> None:
    with pytest.raises(UsageError, match="needs a key"):
        await open_with(stand_in, api_key=None, api_url=NOBODY)


async def test_a_service_that_cannot_be_reached_is_said_so_soon(stand_in: StandIn) -> None:
    with anyio.fail_after(60), pytest.raises(SandboxUnavailableError, match="cannot be reached"):
        await open_with(stand_in, api_url=NOBODY)


async def test_an_unknown_template_is_named(stand_in: StandIn) -> None:
    with pytest.raises(UsageError, match="no template 'nothing-like-it'"):
        await open_with(stand_in, template="nothing-like-it")


@pytest.mark.parametrize(("status", "words"), [(429, "no more sandboxes"), (503, "no room")])
async def test_a_service_without_room_is_said_so(
    stand_in: StandIn, backend: E2BBackend, status: int, words: str
) -> None:
    stand_in.service.refuse_with = status
    try:
        with anyio.fail_after(60), pytest.raises(SandboxUnavailableError, match=words) as refusal:
            async with backend.open_sandbox(LIMITS):
                pass
    finally:
        stand_in.service.refuse_with = 0

    assert refusal.value.dispatch == "never_started"


async def test_a_sandbox_has_no_network_unless_it_asks_for_hosts(
    stand_in: StandIn, backend: E2BBackend
) -> None:
    async with backend.open_sandbox(LIMITS):
        assert stand_in.service.created[-1]["allow_internet_access"] is False
    async with backend.open_sandbox(LIMITS, SandboxSpec(hosts=("pypi.org", "*.example.org:443"))):
        network = stand_in.service.created[-1]["network"]

    assert network == {"allowOut": ["*.example.org", "pypi.org"], "denyOut": ["0.0.0.0/0"]}


@pytest.mark.parametrize(
    "equipment", [SandboxSpec(packages=("requests",)), SandboxSpec(hosts=("example.org:8443",))]
)
async def test_equipment_that_the_service_cannot_give_is_refused(
    stand_in: StandIn, backend: E2BBackend, equipment: SandboxSpec
) -> None:
    made = len(stand_in.service.created)

    with pytest.raises(UsageError, match="cannot"):
        async with backend.open_sandbox(LIMITS, equipment):
            pass

    assert len(stand_in.service.created) == made


async def test_a_machine_that_is_lost_under_a_program_is_an_error(
    stand_in: StandIn, box: Sandbox
) -> None:
    running = anyio.Event()
    losses: list[SandboxUnavailableError] = []
    program = PythonCode(source=b"import time; print(1, flush=True); time.sleep(60)")

    async def run() -> None:
        try:
            await box.run(program, on_output=lambda _: running.set())
        except SandboxUnavailableError as error:
            losses.append(error)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await running.wait()
            await stand_in.service.end(next(reversed(stand_in.service.rented)))

    assert [loss.dispatch for loss in losses] == ["outcome_unknown"]


async def test_a_machine_that_is_gone_already_has_run_nothing(
    stand_in: StandIn, box: Sandbox
) -> None:
    await stand_in.service.end(next(reversed(stand_in.service.rented)))

    with pytest.raises(SandboxUnavailableError, match="is gone") as loss:
        await box.run(PythonCode(source=b"print(1)"))

    assert loss.value.dispatch == "never_started"


BEGUN = b"""
import os, time
with open("pid", "w") as note:
    note.write(str(os.getpid()))
print("begun", flush=True)
time.sleep(60)
"""
LIVES = b"import os; os.kill(int(open('pid').read()), 0)"


async def test_a_program_of_which_no_start_was_told_ends_with_its_cancellation(
    stand_in: StandIn, box: Sandbox
) -> None:
    machine = newest(stand_in)
    machine.telling.clear()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(box.run, PythonCode(source=BEGUN))
        assert await eventually(lambda: machine.untold() > 1)
        tasks.cancel_scope.cancel()
        machine.telling.set()

    result = await box.run(PythonCode(source=LIVES))
    assert "ProcessLookupError" in result.stderr


async def test_a_machine_that_tells_no_start_is_ended_with_the_cancellation(
    stand_in: StandIn, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.sandbox.e2b.sandbox._ENDING_S", 0.2)
    machine = newest(stand_in)
    machine.telling.clear()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(box.run, PythonCode(source=BEGUN))
        assert await eventually(lambda: machine.untold() > 1)
        tasks.cancel_scope.cancel()
    machine.telling.set()

    assert machine not in [one.machine for one in stand_in.service.rented.values()]


async def test_a_machine_that_does_not_answer_for_its_files_is_an_error(
    stand_in: StandIn, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.sandbox.e2b.sandbox._ANSWER_S", 0.2)
    telling = newest(stand_in).telling
    telling.clear()

    with pytest.raises(SandboxUnavailableError, match="does not answer"):
        await box.read_file(PurePosixPath("note"))
    telling.set()


async def test_a_result_says_that_it_was_a_machine(box: Sandbox) -> None:
    result = await box.run(PythonCode(source=b"print(6 * 7)"))

    assert (result.stdout, result.backend, result.isolation) == ("42\n", "e2b", Isolation.MACHINE)


async def test_machines_are_kept_alive_for_as_long_as_they_are_open(stand_in: StandIn) -> None:
    settings = stand_in.with_settings(timeout_s=0.3)
    stand_in.service.renewed.clear()

    async with open_e2b(settings) as backend, backend.open_sandbox(LIMITS):
        with anyio.fail_after(60):
            await stand_in.service.renewed.wait()


async def test_a_sandbox_is_labelled_with_its_owner_and_ended_with_its_context(
    stand_in: StandIn, backend: E2BBackend
) -> None:
    async with backend.open_sandbox(LIMITS):
        (found,) = await cleanup.find_leftovers(stand_in.settings)

        assert found.owner.pid == os.getpid()
        assert found.here
        assert not found.orphaned
    assert await cleanup.find_leftovers(stand_in.settings) == []


DIES = """
import anyio, os, signal, sys
from assay.contracts.execution import Limits
from assay.settings.load import load_settings
from assay.wiring import open_backend

async def main():
    settings = load_settings({"sandbox": {"backend": "e2b"}}).sandbox
    async with open_backend(settings) as backend, backend.open_sandbox(Limits()):
        os.kill(os.getpid(), signal.SIGKILL)

anyio.run(main)
"""


async def assay(stand_in: StandIn, *words: str) -> tuple[int, str, str]:
    env = {**os.environ, **stand_in.environment()}
    done = await anyio.run_process([sys.executable, *words], env=env, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_what_a_killed_owner_leaves_is_found_and_ended(
    stand_in: StandIn, backend: E2BBackend
) -> None:
    async with backend.open_sandbox(LIMITS):
        await assay(stand_in, "-c", DIES)
        words = ("-m", "assay", "sandbox")

        _, listed, hint = await assay(stand_in, *words, "list", "--backend", "e2b", "--json")
        code, ended, _ = await assay(stand_in, *words, "clean", "--backend", "e2b", "--yes")

        states = sorted(row["state"] for row in json.loads(listed))
        assert states == ["orphaned", "running"], hint
        assert code == 0
        assert ended.startswith("ended i")
        assert len(await cleanup.find_leftovers(stand_in.settings)) == 1


async def test_the_command_runs_a_program_there(stand_in: StandIn) -> None:
    code, shown, errors = await assay(
        stand_in,
        "-m",
        "assay",
        "sandbox",
        "run",
        "--backend",
        "e2b",
        "--",
        "sh",
        "-c",
        "echo hi; exit 3",
    )

    assert (code, shown) == (3, "hi\n"), errors


async def test_cells_remember(cells: Interpreter) -> None:
    await cells.run_cell("x = 20")
    result = await cells.run_cell("print('so far'); x + 22")

    assert result.succeeded
    assert result.number == 2
    assert result.execution.stdout == "so far\n"
    assert [(one.kind, one.text) for one in result.outputs] == [("value", "42")]


async def test_what_a_cell_shows_comes_in_every_form(cells: Interpreter) -> None:
    source = """
class Picture:
    def _repr_html_(self): return "<b>hi</b>"
    def _repr_png_(self): return b"\\x89PNG"
display(Picture())
"""
    result = await cells.run_cell(source)

    (shown,) = result.outputs
    assert shown.kind == "display"
    assert shown.forms["text/html"] == b"<b>hi</b>"
    assert shown.forms["image/png"] == b"\x89PNG"


async def test_an_exception_is_told_and_the_rest_is_kept(cells: Interpreter) -> None:
    result = await cells.run_cell("x = 1\n1 / 0")

    assert result.error is not None
    assert result.error.name == "ZeroDivisionError"
    assert result.execution.exit_code == 1
    assert (await cells.run_cell("x")).outputs[0].text == "1"


async def test_a_cell_that_takes_too_long_is_interrupted(cells: Interpreter) -> None:
    await cells.run_cell("x = 1")
    result = await cells.run_cell(
        "print('begun', flush=True)\nimport time\ntime.sleep(60)", timeout_s=1.0
    )

    assert result.execution.reason is Reason.TIMED_OUT
    assert result.execution.stdout == "begun\n"
    assert result.execution.limits_hit == ("wall_s",)
    assert (await cells.run_cell("x")).outputs[0].text == "1"


async def test_a_cell_is_interrupted_from_outside(cells: Interpreter) -> None:
    async with anyio.create_task_group() as tasks:
        begun = anyio.Event()

        async def stop() -> None:
            await begun.wait()
            await cells.interrupt()

        tasks.start_soon(stop)
        result = await cells.run_cell(
            "print(1)\nimport time\ntime.sleep(60)", on_output=lambda _: begun.set()
        )

    assert result.execution.reason is Reason.CANCELLED


async def test_an_interpreter_that_ends_is_an_error_and_not_an_empty_one(
    cells: Interpreter,
) -> None:
    with pytest.raises(SandboxUnavailableError) as loss:
        await cells.run_cell("import os; os._exit(0)")

    assert loss.value.dispatch == "outcome_unknown"


async def test_an_interpreter_cannot_branch_and_says_why(cells: Interpreter) -> None:
    with pytest.raises(UsageError, match="cannot be copied"):
        async with cells.branch():
            pass


async def test_cells_and_programs_share_files(box: Sandbox, cells: Interpreter) -> None:
    await cells.run_cell("open('note', 'w').write('from a cell')")

    assert await box.read_file(PurePosixPath("note")) == b"from a cell"


async def test_the_sdk_itself_runs_code_on_the_stand_in(stand_in: StandIn) -> None:
    from e2b_code_interpreter import AsyncSandbox

    machine = await AsyncSandbox.create(**connection_to(stand_in.settings))
    try:
        await machine.run_code("x = 40")
        ran = await machine.run_code("print(x + 2)")
    finally:
        await machine.kill()

    assert "".join(ran.logs.stdout) == "42\n"
