"""Client of a backend in another process: its sandboxes, over any `Caller`.

The client checks every answer. An answer that cannot be right ends the connection and raises
`SandboxUnavailableError` in the callers that wait.
"""

import secrets
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

import anyio

from assay.contracts.errors import (
    AssayError,
    SandboxUnavailableError,
    UsageError,
    WorkspaceFullError,
)
from assay.contracts.execution import (
    DEFAULT_SPEC,
    ExecutionResult,
    FileInfo,
    Isolation,
    Limits,
    Program,
    SandboxSpec,
)
from assay.contracts.interpreter import CellResult
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.sandbox.rpc.follow import Ended, Following, check_output, follow, pick_up, stopping
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages import methods
from assay.sandbox.rpc.messages.codec import (
    CHUNK_BYTES,
    to_equipment,
    to_limits,
    to_program,
    to_source,
)
from assay.sandbox.rpc.messages.primitives import MessageError, member, to_path
from assay.sandbox.rpc.messages.results import ISOLATIONS, from_file, from_result
from assay.sandbox.rpc.transport import BrokenOffError, Caller, distrusting

_ANSWER_S: Final = 60.0
"""Timeout of calls that run no program."""
_FILE_S: Final = 600.0
"""Timeout of file transfers; a file may be large and the connection slow."""
_OPEN_S: Final = 300.0
"""Timeout of opening a sandbox; the executor may have to download packages first."""
_STREAMED_FROM_BYTES: Final = 4 << 20
"""From this output limit on, the client streams output even without a listener."""
_MOST_FILES: Final = 1_000_000


def new_id() -> str:
    """Generate an id that cannot be guessed."""
    return secrets.token_hex(16)


@contextmanager
def _expressing() -> Generator[None]:
    """Turn a request that no message can encode into an error of the caller."""
    try:
        yield
    except MessageError as error:
        raise UsageError(str(error)) from error


class FarBackend:
    """See `assay.contracts.ports.SandboxBackend`."""

    def __init__(self, caller: Caller, capabilities: pb.Capabilities) -> None:
        self._caller = caller
        with distrusting(caller):
            self.isolation: Isolation = member(ISOLATIONS, capabilities.isolation, of="isolation")
        self.name = capabilities.backend

    @asynccontextmanager
    async def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AsyncGenerator[Sandbox]:
        sandbox = FarSandbox(self._caller, self.name, limits)
        async with open_far(sandbox, equipment):
            yield sandbox


@asynccontextmanager
async def open_far(sandbox: "FarSandbox", equipment: SandboxSpec) -> AsyncGenerator[None]:
    """Open a sandbox on the remote side; raises what `SandboxBackend.open_sandbox` raises."""
    try:
        await sandbox.open(equipment)
        yield
    finally:
        # Also after a failed opening: the sandbox may exist on the remote side.
        with anyio.CancelScope(shield=True):
            await sandbox.close()


class FarSandbox:
    """See `assay.contracts.ports.Sandbox`."""

    def __init__(self, caller: Caller, backend: str, limits: Limits) -> None:
        self.limits = limits
        self.id = new_id()
        self._caller = caller
        self._backend = backend
        self._open = True

    async def open(self, equipment: SandboxSpec) -> None:
        """Open the sandbox on the remote side; raises what `SandboxBackend.open_sandbox` raises."""
        request = pb.OpenSandboxRequest(
            sandbox_id=self.id,
            limits=to_limits(self.limits),
            equipment=to_equipment(equipment),
        )
        await self._caller.ask(methods.OPEN_SANDBOX, request, timeout_s=_OPEN_S)

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        self._check_open()
        with _expressing():
            request = pb.ExecuteRequest(
                sandbox_id=self.id, execution_id=new_id(), program=to_program(program)
            )
        following = Following(request.execution_id, self.limits.output_bytes, on_output)
        if on_output is ignore_output and self.limits.output_bytes <= _STREAMED_FROM_BYTES:
            return await self._execute(request, following)
        ended = await follow(self._caller, methods.EXECUTE_STREAM, request, following)
        return self._of_a_program(ended)

    async def _execute(self, request: pb.ExecuteRequest, following: Following) -> ExecutionResult:
        async with stopping(self._caller, request.execution_id):
            try:
                answer = await self._caller.ask(methods.EXECUTE, request)
            except BrokenOffError as broken:
                return self._of_a_program(await pick_up(self._caller, following, broken))
        with distrusting(self._caller):
            result = from_result(answer)
            check_output(result, self.limits.output_bytes)
            return replace(result, backend=self._backend)

    def _of_a_program(self, ended: Ended) -> ExecutionResult:
        with distrusting(self._caller):
            if isinstance(ended, CellResult):
                raise MessageError("the result of a cell, for a program")
            return replace(ended, backend=self._backend)

    @asynccontextmanager
    async def open_interpreter(self) -> AsyncGenerator["FarInterpreter"]:
        self._check_open()
        interpreter = FarInterpreter(self._caller, self._backend, self.limits)
        request = pb.OpenInterpreterRequest(sandbox_id=self.id, interpreter_id=interpreter.id)
        try:
            await self._caller.ask(methods.OPEN_INTERPRETER, request, timeout_s=_ANSWER_S)
            yield interpreter
        finally:
            with anyio.CancelScope(shield=True):
                await interpreter.close()

    async def cancel(self) -> None:
        self._check_open()
        request = pb.CancelExecutionsRequest(sandbox_id=self.id)
        await self._caller.ask(methods.CANCEL_EXECUTIONS, request, timeout_s=_ANSWER_S)

    async def close(self) -> None:
        """Close the sandbox; afterwards nothing of it runs unless the connection is lost."""
        self._open = False
        request = pb.CloseSandboxRequest(sandbox_id=self.id)
        await _close(self._caller, methods.CLOSE_SANDBOX, request)

    def _check_open(self) -> None:
        if not self._open:
            raise SandboxUnavailableError("the sandbox is closed", dispatch="never_started")

    async def write_file(
        self, path: PurePosixPath, content: bytes, *, executable: bool = False
    ) -> None:
        self._check_open()
        if len(content) > self.limits.disk_mb << 20:
            raise WorkspaceFullError(f"no room for the {len(content)} bytes of {str(path)!r}")
        with _expressing():
            first = pb.WriteFileRequest(
                sandbox_id=self.id,
                path=to_path(path),
                executable=executable,
                content=content[:CHUNK_BYTES],
            )
        rest = (
            pb.WriteFileRequest(content=content[begin : begin + CHUNK_BYTES])
            for begin in range(CHUNK_BYTES, len(content), CHUNK_BYTES)
        )
        await self._caller.ask(methods.WRITE_FILE, first, *rest, timeout_s=_FILE_S)

    async def read_file(self, path: PurePosixPath, *, max_bytes: int = 64 << 20) -> bytes:
        self._check_open()
        with _expressing():
            request = pb.ReadFileRequest(
                sandbox_id=self.id, path=to_path(path), max_bytes=max_bytes
            )
        content = bytearray()
        with distrusting(self._caller):
            async with self._caller.stream(methods.READ_FILE, request) as answers:
                async for answer in answers:
                    content += answer.content
                    if len(content) > max_bytes:
                        raise MessageError(f"a file of more than {max_bytes} bytes")
        return bytes(content)

    async def list_files(self, path: PurePosixPath = PurePosixPath()) -> tuple[FileInfo, ...]:
        self._check_open()
        with _expressing():
            request = pb.ListFilesRequest(sandbox_id=self.id, path=to_path(path))
        files: list[FileInfo] = []
        with distrusting(self._caller):
            async with self._caller.stream(methods.LIST_FILES, request) as answers:
                async for answer in answers:
                    files.extend(from_file(file) for file in answer.files)
                    if len(files) > _MOST_FILES:
                        raise MessageError(f"more than {_MOST_FILES} files")
        return tuple(files)

    async def make_directory(self, path: PurePosixPath) -> None:
        self._check_open()
        with _expressing():
            request = pb.MakeDirectoryRequest(sandbox_id=self.id, path=to_path(path))
        await self._caller.ask(methods.MAKE_DIRECTORY, request, timeout_s=_ANSWER_S)

    async def remove_path(self, path: PurePosixPath) -> None:
        self._check_open()
        with _expressing():
            request = pb.RemovePathRequest(sandbox_id=self.id, path=to_path(path))
        await self._caller.ask(methods.REMOVE_PATH, request, timeout_s=_ANSWER_S)


class FarInterpreter:
    """See `assay.contracts.ports.Interpreter`."""

    def __init__(self, caller: Caller, backend: str, limits: Limits) -> None:
        self.id = new_id()
        self._caller = caller
        self._backend = backend
        self._limits = limits
        self._open = True

    async def run_cell(
        self, source: str, *, timeout_s: float | None = None, on_output: OnOutput = ignore_output
    ) -> CellResult:
        self._check_open()
        request = pb.RunCellRequest(
            interpreter_id=self.id,
            execution_id=new_id(),
            source=to_source(source),
            timeout_s=timeout_s,
        )
        following = Following(request.execution_id, self._limits.output_bytes, on_output)
        ended = await follow(self._caller, methods.RUN_CELL, request, following)
        with distrusting(self._caller):
            if isinstance(ended, ExecutionResult):
                raise MessageError("the result of a program, for a cell")
            return replace(ended, execution=replace(ended.execution, backend=self._backend))

    async def interrupt(self) -> None:
        self._check_open()
        request = pb.InterruptCellRequest(interpreter_id=self.id)
        await self._caller.ask(methods.INTERRUPT_CELL, request, timeout_s=_ANSWER_S)

    @asynccontextmanager
    async def branch(self) -> AsyncGenerator["FarInterpreter"]:
        self._check_open()
        copy = FarInterpreter(self._caller, self._backend, self._limits)
        request = pb.BranchInterpreterRequest(interpreter_id=self.id, branch_id=copy.id)
        try:
            await self._caller.ask(methods.BRANCH_INTERPRETER, request, timeout_s=_ANSWER_S)
            yield copy
        finally:
            with anyio.CancelScope(shield=True):
                await copy.close()

    async def close(self) -> None:
        """Close the interpreter on the remote side."""
        self._open = False
        request = pb.CloseInterpreterRequest(interpreter_id=self.id)
        await _close(self._caller, methods.CLOSE_INTERPRETER, request)

    def _check_open(self) -> None:
        if not self._open:
            raise SandboxUnavailableError("the interpreter is closed", dispatch="never_started")


async def _close(
    caller: Caller,
    method: methods.Method[methods.Request, methods.Response],
    request: methods.Request,
) -> None:
    try:
        await caller.ask(method, request, timeout_s=_ANSWER_S)
    except AssayError:
        # The remote side has lost it, or closes it when its lease ends.
        return
