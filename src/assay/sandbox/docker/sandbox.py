"""Sandbox in a container; this side labels the results, not the container."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from assay.contracts.execution import ExecutionResult, FileInfo, Isolation, Limits, Program
from assay.contracts.interpreter import CellResult
from assay.contracts.ports import Interpreter, OnOutput, Sandbox, ignore_output


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLabel:
    """The backend facts of every result, which the container cannot change."""

    backend: str
    isolation: Isolation

    def on(self, result: ExecutionResult) -> ExecutionResult:
        return replace(result, backend=self.backend, isolation=self.isolation)


class DockerSandbox:
    """See `assay.contracts.ports.Sandbox`."""

    def __init__(self, far: Sandbox, seal: ResultLabel) -> None:
        self._far = far
        self._seal = seal

    @property
    def limits(self) -> Limits:
        return self._far.limits

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        return self._seal.on(await self._far.run(program, on_output=on_output))

    @asynccontextmanager
    async def open_interpreter(self) -> AsyncGenerator[Interpreter]:
        async with self._far.open_interpreter() as interpreter:
            yield DockerInterpreter(interpreter, self._seal)

    async def cancel(self) -> None:
        await self._far.cancel()

    async def write_file(
        self, path: PurePosixPath, content: bytes, *, executable: bool = False
    ) -> None:
        await self._far.write_file(path, content, executable=executable)

    async def read_file(self, path: PurePosixPath, *, max_bytes: int = 64 << 20) -> bytes:
        return await self._far.read_file(path, max_bytes=max_bytes)

    async def list_files(self, path: PurePosixPath = PurePosixPath()) -> tuple[FileInfo, ...]:
        return await self._far.list_files(path)

    async def make_directory(self, path: PurePosixPath) -> None:
        await self._far.make_directory(path)

    async def remove_path(self, path: PurePosixPath) -> None:
        await self._far.remove_path(path)


class DockerInterpreter:
    """See `assay.contracts.ports.Interpreter`."""

    def __init__(self, far: Interpreter, seal: ResultLabel) -> None:
        self._far = far
        self._seal = seal

    async def run_cell(
        self, source: str, *, timeout_s: float | None = None, on_output: OnOutput = ignore_output
    ) -> CellResult:
        result = await self._far.run_cell(source, timeout_s=timeout_s, on_output=on_output)
        return replace(result, execution=self._seal.on(result.execution))

    async def interrupt(self) -> None:
        await self._far.interrupt()

    @asynccontextmanager
    async def branch(self) -> AsyncGenerator[Interpreter]:
        async with self._far.branch() as copy:
            yield DockerInterpreter(copy, self._seal)
