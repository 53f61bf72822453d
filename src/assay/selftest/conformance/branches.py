"""Requirements for branches: independent copies of an interpreter."""

import anyio

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.ports import Interpreter, SandboxBackend
from assay.selftest.conformance.promise import promise
from assay.selftest.interpreters import open_session, run_in, value_in
from assay.selftest.programs import refused


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
