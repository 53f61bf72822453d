"""With the cache switched on, the same program with the same files runs once; nothing else does."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import (
    ExecutionResult,
    Limits,
    OutputChunk,
    Program,
    PythonCode,
    Reason,
    SandboxSpec,
)
from assay.contracts.ports import Sandbox, SandboxBackend
from tests.doubles.fake_sandbox import FakeBackend, FakeFile, FakeSandbox, answer_with
from tests.support.executors import open_client, open_served

NOTE = PurePosixPath("note")
CODE = PythonCode(source=b"print(1)")


class Counting:
    """Counts what really runs; each run leaves a file."""

    def __init__(self, reason: Reason = Reason.COMPLETED) -> None:
        self.runs = 0
        self._reason = reason

    def answer(self, program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        del program
        self.runs += 1
        sandbox.files[PurePosixPath("made")] = FakeFile(b"by the program")
        return answer_with(f"run {self.runs}", reason=self._reason)


class Failing(Counting):
    """Cannot run something once."""

    def __init__(self, *, fails_at: int) -> None:
        super().__init__()
        self._fails_at = fails_at

    def answer(self, program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        if self.runs + 1 == self._fails_at:
            self.runs += 1
            raise SandboxUnavailableError("no room", dispatch="never_started")
        return super().answer(program, sandbox)


@asynccontextmanager
async def opened(
    counting: Counting, folder: Path, *, cache: bool = True
) -> AsyncGenerator[SandboxBackend]:
    async with (
        open_served(FakeBackend(answer=counting.answer), folder) as executor,
        open_client(executor.port, cache=cache) as remote,
    ):
        yield remote


async def test_the_same_program_with_the_same_files_runs_once(tmp_path: Path) -> None:
    counting = Counting()
    heard: list[OutputChunk] = []
    async with opened(counting, tmp_path) as remote:
        results: list[ExecutionResult] = []
        for _ in range(3):
            async with remote.open_sandbox(Limits()) as sandbox:
                await sandbox.write_file(NOTE, b"same")
                results.append(await sandbox.run(CODE, on_output=heard.append))

    assert counting.runs == 1
    assert results[0] == results[1] == results[2]
    assert [chunk.data for chunk in heard] == [b"run 1"] * 3


async def test_without_the_switch_everything_runs(tmp_path: Path) -> None:
    counting = Counting()
    async with opened(counting, tmp_path, cache=False) as remote:
        for _ in range(2):
            async with remote.open_sandbox(Limits()) as sandbox:
                await sandbox.run(CODE)

    assert counting.runs == 2


async def _other_file(sandbox: Sandbox) -> None:
    await sandbox.write_file(NOTE, b"other")


async def _other_mode(sandbox: Sandbox) -> None:
    await sandbox.write_file(NOTE, b"", executable=True)


async def _directory(sandbox: Sandbox) -> None:
    await sandbox.make_directory(NOTE)


@pytest.mark.parametrize("prepare", [_other_file, _other_mode, _directory])
async def test_other_files_make_another_execution(prepare: object, tmp_path: Path) -> None:
    counting = Counting()
    async with opened(counting, tmp_path) as remote:
        async with remote.open_sandbox(Limits()) as sandbox:
            await sandbox.run(CODE)
        async with remote.open_sandbox(Limits()) as sandbox:
            await prepare(sandbox)  # type: ignore[operator]
            await sandbox.run(CODE)

    assert counting.runs == 2


async def test_other_code_input_limits_and_packages_make_another_execution(tmp_path: Path) -> None:
    counting = Counting()
    other: list[tuple[Program, Limits, SandboxSpec]] = [
        (CODE, Limits(), SandboxSpec()),
        (replace(CODE, stdin=b"x"), Limits(), SandboxSpec()),
        (replace(CODE, env={"A": "b"}), Limits(), SandboxSpec()),
        (CODE, Limits(memory_mb=64), SandboxSpec()),
        (CODE, Limits(), SandboxSpec(packages=("six",))),
    ]
    async with opened(counting, tmp_path) as remote:
        for program, limits, equipment in other:
            async with remote.open_sandbox(limits, equipment) as sandbox:
                await sandbox.run(program)

    assert counting.runs == len(other)


async def test_network_sessions_and_later_programs_are_never_answered_from_the_cache(
    tmp_path: Path,
) -> None:
    counting = Counting()
    async with opened(counting, tmp_path) as remote:
        for _ in range(2):
            async with remote.open_sandbox(
                Limits(), SandboxSpec(hosts=("example.org",))
            ) as sandbox:
                await sandbox.run(CODE)
        assert counting.runs == 2
        for _ in range(2):
            async with remote.open_sandbox(Limits()) as sandbox:
                async with sandbox.open_interpreter() as interpreter:
                    await interpreter.run_cell("1")
                await sandbox.run(CODE)
        assert counting.runs == 6


async def test_a_program_that_was_answered_runs_before_anything_else_is_done(
    tmp_path: Path,
) -> None:
    counting = Counting()
    async with opened(counting, tmp_path) as remote:
        async with remote.open_sandbox(Limits()) as sandbox:
            await sandbox.run(CODE)
        async with remote.open_sandbox(Limits()) as sandbox:
            await sandbox.run(CODE)
            assert counting.runs == 1
            assert await sandbox.read_file(PurePosixPath("made")) == b"by the program"
            assert counting.runs == 2


async def test_a_program_that_was_answered_is_owed_until_it_has_run(tmp_path: Path) -> None:
    counting = Failing(fails_at=2)
    async with opened(counting, tmp_path) as remote:
        async with remote.open_sandbox(Limits()) as sandbox:
            await sandbox.run(CODE)
        async with remote.open_sandbox(Limits()) as sandbox:
            await sandbox.run(CODE)
            with pytest.raises(SandboxUnavailableError, match="no room"):
                await sandbox.read_file(PurePosixPath("made"))
            assert await sandbox.read_file(PurePosixPath("made")) == b"by the program"


async def test_a_program_that_was_ended_is_not_kept(tmp_path: Path) -> None:
    counting = Counting(Reason.TIMED_OUT)
    async with opened(counting, tmp_path) as remote:
        for _ in range(2):
            async with remote.open_sandbox(Limits()) as sandbox:
                await sandbox.run(CODE)

    assert counting.runs == 2
