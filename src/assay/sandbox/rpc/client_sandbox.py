"""Client of a backend in another process: its sandboxes, over any `Transport`.

A transport calls a method and reports how a failed call ended. A remote execution is followed to
its end, also when the connection breaks. The client checks every answer. An answer that cannot be
right ends the connection and raises `SandboxUnavailableError` in the callers that wait.
"""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, ClassVar, Final, Protocol, TypeVar

import anyio

from assay.contracts.errors import AssayError, SandboxUnavailableError, WorkspaceFullError
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
    WorkspaceChanges,
)
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.workspace import WorkspaceLayer
from assay.sandbox.layer_copy import compare_with_layer, fill_from_layer
from assay.sandbox.output import FLOOD_FACTOR, Capture
from assay.sandbox.rpc.layer_upload import send_layer
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
    from_path,
    from_result,
    to_equipment,
    to_limits,
    to_path,
    to_program,
    to_source,
)
from assay.sandbox.rpc.messages.failures import ExecutorBusyError, from_failure
from assay.sandbox.rpc.messages.methods import Method, Request, Response

T = TypeVar("T")
Ended = TypeVar("Ended", ExecutionResult, CellResult)


class BrokenOffError(SandboxUnavailableError):
    """A call broke off, and the remote side may still carry it out; the client can ask."""

    def __init__(self, message: str) -> None:
        super().__init__(message, dispatch="outcome_unknown")


class UnreachableError(SandboxUnavailableError):
    """The remote side received nothing. Another executor may answer, or this one later."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, dispatch="never_started", hint=hint)


class Transport(Protocol):
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
def distrusting(transport: Transport) -> Generator[None]:
    """End the connection when an answer cannot be right."""
    try:
        yield
    except MessageError as error:
        transport.distrust(str(error))
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


async def retry_while_busy(retry_timeout_s: float, act: Callable[[], Awaitable[T]]) -> T:
    """Repeat an action while the executor is too busy to start it.

    Raises:
        ExecutorBusyError: If the executor would still be busy after this time.
    """
    deadline = anyio.current_time() + retry_timeout_s
    while True:
        try:
            return await act()
        except ExecutorBusyError as busy:
            if anyio.current_time() + busy.retry_after_s > deadline:
                raise
            await anyio.sleep(busy.retry_after_s)


class RemoteExecution:
    """One remote execution and its events so far."""

    def __init__(self, transport: Transport, output_bytes: int, on_output: OnOutput) -> None:
        self.id = new_id()
        self._transport = transport
        self._on_output = on_output
        self._limit_bytes = output_bytes
        self._kept: dict[StreamName, Capture] = {
            "stdout": Capture(output_bytes),
            "stderr": Capture(output_bytes),
        }
        self._offsets: dict[StreamName, int] = {"stdout": 0, "stderr": 0}

    async def run(self, method: Method[Any, Any], request: Any, kind: type[Ended]) -> Ended:
        """Start the execution and follow it to its end, also when the connection breaks.

        If the caller stops waiting, the execution is stopped before the caller continues.
        """
        try:
            try:
                ended = await self._call(method, request)
            except BrokenOffError as broken:
                ended = await self.resume(broken)
        except AssayError:
            raise
        except BaseException:
            # Without a connection nothing more can be done; the remote side ends unread executions.
            with anyio.CancelScope(shield=True), suppress(AssayError):
                stop = pb.StopExecutionRequest(execution_id=self.id)
                await self._transport.ask(methods.STOP_EXECUTION, stop, timeout_s=_STOP_S)
            raise
        with distrusting(self._transport):
            if not isinstance(ended, kind):
                raise MessageError(f"{type(ended).__name__} instead of {kind.__name__}")
        return ended

    async def resume(self, broken: BrokenOffError) -> ExecutionResult | CellResult:
        """Resume following the execution after its connection broke.

        Raises:
            SandboxUnavailableError: `outcome_unknown`, if the remote side cannot be reached or does
                not know the execution: it never received the request, or has forgotten it.
        """
        pause_s = _FIRST_PAUSE_S
        lost: SandboxUnavailableError = broken
        deadline = anyio.current_time() + _PICK_UP_S
        while anyio.current_time() < deadline:
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            rest = pb.AttachStreamRequest(
                execution_id=self.id,
                stdout_offset=self._offsets["stdout"],
                stderr_offset=self._offsets["stderr"],
            )
            try:
                return await self._call(methods.ATTACH_STREAM, rest)
            except (BrokenOffError, UnreachableError) as again:
                lost = again
            except SandboxUnavailableError as error:
                # This error belongs to the attempt to reconnect, not to the program.
                lost = error
                break
        raise SandboxUnavailableError(
            f"lost during the run, and the program may have run to its end: {lost}",
            dispatch="outcome_unknown",
            hint="it is not run a second time; look at what it was to do before you run it again",
        ) from lost

    async def _call(self, method: Method[Any, Any], request: Any) -> ExecutionResult | CellResult:
        with distrusting(self._transport):
            if not method.streams_responses:
                answer = await self._transport.ask(method, request)
                return self._checked(from_result(answer))
            async with self._transport.stream(method, request) as events:
                return await self._read(events)

    async def _read(self, events: AsyncIterator[pb.ExecutionEvent]) -> ExecutionResult | CellResult:
        sequence = 0
        async for event in events:
            sequence += 1
            if event.sequence != sequence:
                raise MessageError(f"event {event.sequence} came as the {sequence}th")
            match event.WhichOneof("event"):
                case "output":
                    self._receive(event.output)
                case "result":
                    return self._checked(from_result(event.result, self._streamed()))
                case "cell":
                    cell = from_cell(event.cell, self._streamed())
                    self._checked(cell.execution)
                    return cell
                case "failure":
                    raise from_failure(event.failure)
                case _:
                    raise MessageError("an event that is none")
        raise MessageError("the events ended before the execution")

    def _streamed(self) -> dict[StreamName, bytes]:
        return {stream: capture.kept for stream, capture in self._kept.items()}

    def _receive(self, output: pb.Output) -> None:
        stream = STREAMS.decode(output.stream)
        expected = self._offsets[stream]
        if output.offset < expected or (output.offset > expected < self._limit_bytes):
            raise MessageError(f"{stream} continues at byte {output.offset}, not at {expected}")
        self._offsets[stream] = output.offset + len(output.data)
        if self._offsets[stream] > (FLOOD_FACTOR + 1) * self._limit_bytes + _SLACK_BYTES:
            raise MessageError(f"{stream} has no end")
        self._kept[stream].add(output.data)
        self._on_output(OutputChunk(stream=stream, data=output.data))

    def _checked(self, result: ExecutionResult) -> ExecutionResult:
        if max(len(result.stdout_bytes), len(result.stderr_bytes)) > self._limit_bytes:
            raise MessageError("a result with more output than there may be")
        return result


@dataclass(frozen=True, slots=True)
class ResultLabel:
    """The facts in every result that the client knows better than the remote side."""

    backend: str
    isolation: Isolation | None = None
    """None: what the remote side reports."""

    def on(self, result: ExecutionResult) -> ExecutionResult:
        isolation = self.isolation or result.isolation
        return replace(result, backend=self.backend, isolation=isolation)


class RpcBackend:
    """See `assay.contracts.ports.SandboxBackend`."""

    def __init__(
        self,
        transport: Transport,
        capabilities: pb.Capabilities,
        label: ResultLabel | None = None,
    ) -> None:
        self._transport = transport
        self._label = label or ResultLabel(capabilities.backend)
        with distrusting(transport):
            reported = ISOLATIONS.decode(capabilities.isolation)
        self._sends_layers = capabilities.layers
        self.name = self._label.backend
        self.isolation: Isolation = self._label.isolation or reported

    @asynccontextmanager
    async def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AsyncGenerator[Sandbox]:
        sandbox = RemoteSandbox(
            self._transport, self._label, limits, sends_layers=self._sends_layers
        )
        async with sandbox.closing():
            await sandbox.open(equipment)
            yield sandbox


class _RemoteObject:
    """A sandbox or an interpreter of the remote side, named by an id."""

    _KIND: ClassVar[str]
    _CLOSE: ClassVar[Method[Any, Any]]

    def __init__(self, transport: Transport, label: ResultLabel, limits: Limits) -> None:
        self.limits = limits
        self.id = new_id()
        self._transport = transport
        self._label = label
        self._open = True

    def _check_open(self) -> None:
        if not self._open:
            raise SandboxUnavailableError(f"the {self._KIND} is closed", dispatch="never_started")

    def _request(self, method: Method[Request, Any], **fields: Any) -> Request:
        return method.request(**{f"{self._KIND}_id": self.id}, **fields)

    async def _ask(
        self, method: Method[Any, Response], *, timeout_s: float = _ANSWER_S, **fields: Any
    ) -> Response:
        self._check_open()
        request = self._request(method, **fields)
        return await self._transport.ask(method, request, timeout_s=timeout_s)

    @asynccontextmanager
    async def closing(self) -> AsyncGenerator[None]:
        """Close it with the context, also if opening it fails: it may exist on the remote side."""
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self.close()

    async def close(self) -> None:
        """Close it; afterwards nothing of it runs unless the connection is lost."""
        self._open = False
        # On an error, the remote side has lost it, or closes it when its lease ends.
        with suppress(AssayError):
            request = self._request(self._CLOSE)
            await self._transport.ask(self._CLOSE, request, timeout_s=_ANSWER_S)

    @asynccontextmanager
    async def _opened_interpreter(
        self, method: Method[Any, Any], id_field: str
    ) -> AsyncGenerator["RemoteInterpreter"]:
        self._check_open()
        interpreter = RemoteInterpreter(self._transport, self._label, self.limits)
        async with interpreter.closing():
            fields: dict[str, Any] = {id_field: interpreter.id}
            await self._ask(method, **fields)
            yield interpreter


class RemoteSandbox(_RemoteObject):
    """See `assay.contracts.ports.Sandbox`."""

    _KIND = "sandbox"
    _CLOSE = methods.CLOSE_SANDBOX

    def __init__(
        self,
        transport: Transport,
        label: ResultLabel,
        limits: Limits,
        *,
        retry_timeout_s: float = 0.0,
        sends_layers: bool = False,
    ) -> None:
        super().__init__(transport, label, limits)
        self._sends_layers = sends_layers
        """Whether the remote side opens sandboxes from layers, and finds changes itself."""
        self._retry_timeout_s = retry_timeout_s
        """How long a program waits for a busy executor."""
        self._layer: WorkspaceLayer | None = None

    async def open(self, equipment: SandboxSpec) -> None:
        """Open the sandbox on the remote side; raises what `SandboxBackend.open_sandbox` raises."""
        spec = to_equipment(equipment)
        limits = to_limits(self.limits)
        self._layer = equipment.layer
        sent = b""
        if self._layer is not None and self._sends_layers:
            sent = await send_layer(self._transport, self._layer)
        await self._ask(
            methods.OPEN_SANDBOX, timeout_s=_OPEN_S, limits=limits, equipment=spec, layer=sent
        )
        if not sent:
            await fill_from_layer(self, self._layer)

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        self._check_open()
        encoded = to_program(program)
        unheard = on_output is ignore_output and self.limits.output_bytes <= _STREAMED_FROM_BYTES
        method = methods.EXECUTE if unheard else methods.EXECUTE_STREAM

        async def execute() -> ExecutionResult:
            execution = RemoteExecution(self._transport, self.limits.output_bytes, on_output)
            request = self._request(method, execution_id=execution.id, program=encoded)
            return self._label.on(await execution.run(method, request, ExecutionResult))

        return await retry_while_busy(self._retry_timeout_s, execute)

    def open_interpreter(self) -> AbstractAsyncContextManager["RemoteInterpreter"]:
        return self._opened_interpreter(methods.OPEN_INTERPRETER, "interpreter_id")

    async def cancel(self) -> None:
        await self._ask(methods.CANCEL_EXECUTIONS)

    async def write_file(
        self, path: PurePosixPath, content: bytes, *, executable: bool = False
    ) -> None:
        self._check_open()
        if len(content) > self.limits.disk_mb << 20:
            raise WorkspaceFullError(f"no room for the {len(content)} bytes of {str(path)!r}")
        first = self._request(
            methods.WRITE_FILE,
            path=to_path(path),
            executable=executable,
            content=content[:CHUNK_BYTES],
        )
        rest = (
            pb.WriteFileRequest(content=content[begin : begin + CHUNK_BYTES])
            for begin in range(CHUNK_BYTES, len(content), CHUNK_BYTES)
        )
        await self._transport.ask(methods.WRITE_FILE, first, *rest, timeout_s=_FILE_S)

    async def read_file(self, path: PurePosixPath, *, max_bytes: int = 64 << 20) -> bytes:
        content = bytearray()
        request = {"path": to_path(path), "max_bytes": max_bytes}
        async with self._stream(methods.READ_FILE, **request) as answers:
            async for answer in answers:
                content += answer.content
                if len(content) > max_bytes:
                    raise MessageError(f"a file of more than {max_bytes} bytes")
        return bytes(content)

    async def list_files(self, path: PurePosixPath = PurePosixPath()) -> tuple[FileInfo, ...]:
        files: list[FileInfo] = []
        async with self._stream(methods.LIST_FILES, path=to_path(path)) as answers:
            async for answer in answers:
                files.extend(from_file(file) for file in answer.files)
                if len(files) > _MOST_FILES:
                    raise MessageError(f"more than {_MOST_FILES} files")
        return tuple(files)

    @asynccontextmanager
    async def _stream(
        self, method: Method[Any, Response], **fields: Any
    ) -> AsyncGenerator[AsyncIterator[Response]]:
        self._check_open()
        request = self._request(method, **fields)
        with distrusting(self._transport):
            async with self._transport.stream(method, request) as answers:
                yield answers

    async def make_directory(self, path: PurePosixPath) -> None:
        await self._ask(methods.MAKE_DIRECTORY, path=to_path(path))

    async def remove_path(self, path: PurePosixPath) -> None:
        await self._ask(methods.REMOVE_PATH, path=to_path(path))

    async def changes(self) -> WorkspaceChanges:
        if not self._sends_layers:
            return await compare_with_layer(self, self._layer)
        written: list[FileInfo] = []
        removed: list[PurePosixPath] = []
        async with self._stream(methods.FIND_CHANGES) as answers:
            async for answer in answers:
                written.extend(from_file(file) for file in answer.written)
                removed.extend(from_path(path) for path in answer.removed)
                if len(written) + len(removed) > _MOST_FILES:
                    raise MessageError(f"more than {_MOST_FILES} changes")
        return WorkspaceChanges(written=tuple(written), removed=tuple(removed))


class RemoteInterpreter(_RemoteObject):
    """See `assay.contracts.ports.Interpreter`."""

    _KIND = "interpreter"
    _CLOSE = methods.CLOSE_INTERPRETER

    async def run_cell(
        self, source: str, *, timeout_s: float | None = None, on_output: OnOutput = ignore_output
    ) -> CellResult:
        self._check_open()
        execution = RemoteExecution(self._transport, self.limits.output_bytes, on_output)
        request = self._request(
            methods.RUN_CELL,
            execution_id=execution.id,
            source=to_source(source),
            timeout_s=timeout_s,
        )
        cell = await execution.run(methods.RUN_CELL, request, CellResult)
        return replace(cell, execution=self._label.on(cell.execution))

    async def interrupt(self) -> None:
        await self._ask(methods.INTERRUPT_CELL)

    def branch(self) -> AbstractAsyncContextManager["RemoteInterpreter"]:
        return self._opened_interpreter(methods.BRANCH_INTERPRETER, "branch_id")
