"""Client of a backend in another process: its sandboxes, over any `Caller`.

`Caller` is the transport interface: it calls a method and reports how a failed call ended. A remote
execution is followed to its end, also when the connection breaks. The client checks every answer.
An answer that cannot be right ends the connection and raises `SandboxUnavailableError` in the
callers that wait.
"""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final, Protocol

import anyio

from assay.contracts.errors import (
    AssayError,
    SandboxUnavailableError,
    UsageError,
    WorkspaceFullError,
)
from assay.contracts.execution import (
    DEFAULT_SPEC,
    CellResult,
    ExecutionResult,
    FileInfo,
    Isolation,
    Limits,
    OutputChunk,
    Program,
    SandboxSpec,
)
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.sandbox.output import FLOOD_FACTOR, Capture
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages import methods
from assay.sandbox.rpc.messages.codec import (
    CHUNK_BYTES,
    ISOLATIONS,
    STREAMS,
    MessageError,
    StreamName,
    from_cell,
    from_file,
    from_result,
    member,
    to_equipment,
    to_limits,
    to_path,
    to_program,
    to_source,
)
from assay.sandbox.rpc.messages.failures import from_failure
from assay.sandbox.rpc.messages.methods import Method, Request, Response


class BrokenOffError(SandboxUnavailableError):
    """A call broke off, and the remote side may still carry it out; the client can ask."""

    def __init__(self, message: str) -> None:
        super().__init__(message, dispatch="outcome_unknown")


class UnreachableError(SandboxUnavailableError):
    """The remote side received nothing. Another executor may answer, or this one later."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, dispatch="never_started", hint=hint)


class Caller(Protocol):
    """Calls methods of one remote side.

    Errors of the closed table are raised as they are. Other failures raise
    `SandboxUnavailableError`: `never_started` only if the remote side cannot have seen the whole
    request, and `BrokenOffError` if the client can ask for the outcome.
    """

    async def ask(
        self, method: Method[Request, Response], *requests: Request, timeout_s: float | None = None
    ) -> Response:
        """Call a method that has one answer; `None` waits as long as the connection lives."""
        ...

    def stream(
        self, method: Method[Request, Response], request: Request
    ) -> AbstractAsyncContextManager[AsyncIterator[Response]]:
        """Call a method that has many answers; leaving the context cancels the rest."""
        ...

    def distrust(self, why: str) -> None:
        """Mark the connection as untrusted after an impossible answer, and end it."""
        ...


@contextmanager
def distrusting(caller: Caller) -> Generator[None]:
    """End the connection when an answer cannot be right."""
    try:
        yield
    except MessageError as error:
        caller.distrust(str(error))
        raise SandboxUnavailableError(
            f"the other side sent what it could not: {error}", dispatch="outcome_unknown"
        ) from error


_STOP_S: Final = 30.0
"""How long the remote side may take to kill a program."""
_PICK_UP_S: Final = 8.0
"""How long to look for an execution whose connection broke."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
_SLACK_BYTES: Final = 16 << 20
"""How much output may be in transit when a backend ends a program that writes too much."""

Ended = ExecutionResult | CellResult


class Following:
    """The events of one execution so far."""

    def __init__(self, execution_id: str, output_bytes: int, on_output: OnOutput) -> None:
        self.execution_id = execution_id
        self._on_output = on_output
        self._limit_bytes = output_bytes
        self._kept: dict[StreamName, Capture] = {
            "stdout": Capture(output_bytes),
            "stderr": Capture(output_bytes),
        }
        self._offsets: dict[StreamName, int] = {"stdout": 0, "stderr": 0}

    def where_it_broke(self) -> pb.AttachStreamRequest:
        return pb.AttachStreamRequest(
            execution_id=self.execution_id,
            stdout_offset=self._offsets["stdout"],
            stderr_offset=self._offsets["stderr"],
        )

    async def read(self, events: AsyncIterator[pb.ExecutionEvent]) -> Ended:
        """Read events until the last one and pass output to the listener.

        Raises:
            MessageError: If an event cannot be right.
            AssayError: If the execution ended in one.
        """
        sequence = 0
        async for event in events:
            sequence += 1
            if event.sequence != sequence:
                raise MessageError(f"event {event.sequence} came as the {sequence}th")
            match event.WhichOneof("event"):
                case "output":
                    self._hear(event.output)
                case "result":
                    return self._checked(from_result(event.result, **self._streamed()))
                case "cell":
                    cell = from_cell(event.cell, **self._streamed())
                    self._checked(cell.execution)
                    return cell
                case "failure":
                    raise from_failure(event.failure)
                case _:
                    raise MessageError("an event that is none")
        raise MessageError("the events ended before the execution")

    def _streamed(self) -> dict[str, bytes]:
        return {
            "streamed_stdout": self._kept["stdout"].kept,
            "streamed_stderr": self._kept["stderr"].kept,
        }

    def _hear(self, output: pb.Output) -> None:
        stream = member(STREAMS, output.stream, of="stream")
        expected = self._offsets[stream]
        if output.offset < expected or (output.offset > expected < self._limit_bytes):
            raise MessageError(f"{stream} continues at byte {output.offset}, not at {expected}")
        self._offsets[stream] = output.offset + len(output.data)
        if self._offsets[stream] > (FLOOD_FACTOR + 1) * self._limit_bytes + _SLACK_BYTES:
            raise MessageError(f"{stream} has no end")
        self._kept[stream].add(output.data)
        self._on_output(OutputChunk(stream=stream, data=output.data))

    def _checked(self, result: ExecutionResult) -> ExecutionResult:
        check_output(result, self._limit_bytes)
        return result


def check_output(result: ExecutionResult, output_bytes: int) -> None:
    """Reject a result with more output than the limits allow.

    Raises:
        MessageError: If it has more.
    """
    if max(len(result.stdout_bytes), len(result.stderr_bytes)) > output_bytes:
        raise MessageError("a result with more output than there may be")


async def follow(
    caller: Caller,
    method: Method[Request, pb.ExecutionEvent],
    request: Request,
    following: Following,
) -> Ended:
    """Start an execution and follow it to its end."""
    async with stopping(caller, following.execution_id):
        try:
            return await _read(caller, method, request, following)
        except BrokenOffError as broken:
            return await pick_up(caller, following, broken)


async def pick_up(caller: Caller, following: Following, broken: BrokenOffError) -> Ended:
    """Resume following an execution whose connection broke.

    Raises:
        SandboxUnavailableError: `outcome_unknown`, if the remote side cannot be reached or does not
            know the execution: it never received the request, or has forgotten it.
    """
    pause_s = _FIRST_PAUSE_S
    lost: SandboxUnavailableError = broken
    deadline = anyio.current_time() + _PICK_UP_S
    while anyio.current_time() < deadline:
        await anyio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        try:
            return await _read(caller, methods.ATTACH_STREAM, following.where_it_broke(), following)
        except (BrokenOffError, UnreachableError) as again:
            lost = again
        except SandboxUnavailableError as error:
            # This error belongs to the attempt to reconnect, not to the program.
            raise _unknown(error) from error
    raise _unknown(lost) from lost


def _unknown(lost: SandboxUnavailableError) -> SandboxUnavailableError:
    return SandboxUnavailableError(
        f"lost during the run, and the program may have run to its end: {lost}",
        dispatch="outcome_unknown",
        hint="it is not run a second time; look at what it was to do before you run it again",
    )


async def _read(
    caller: Caller,
    method: Method[Request, pb.ExecutionEvent],
    request: Request,
    following: Following,
) -> Ended:
    with distrusting(caller):
        async with caller.stream(method, request) as events:
            return await following.read(events)


@asynccontextmanager
async def stopping(caller: Caller, execution_id: str) -> AsyncGenerator[None]:
    """Stop the remote execution if the caller stops waiting, before the caller continues."""
    try:
        yield
    except AssayError:
        raise
    except BaseException:
        with anyio.CancelScope(shield=True):
            await _stop(caller, execution_id)
        raise


async def _stop(caller: Caller, execution_id: str) -> None:
    try:
        request = pb.StopExecutionRequest(execution_id=execution_id)
        await caller.ask(methods.STOP_EXECUTION, request, timeout_s=_STOP_S)
    except AssayError:
        # Without a connection nothing more can be done; the remote side ends unread executions.
        return


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
