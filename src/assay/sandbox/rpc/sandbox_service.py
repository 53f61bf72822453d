"""Sandbox service: carries out one client's requests on a backend, over any transport.

The caller of `answer` passes a request and forwards the yielded answers. Sandboxes belong to the
client that opened them: other clients have other services and cannot refer to them.
"""

import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import anyio.abc
from google.protobuf.message import Message

from assay.contracts.errors import SandboxUnavailableError, UsageError, WorkspaceFullError
from assay.contracts.execution import CellResult, ExecutionResult
from assay.contracts.ports import OnOutput, SandboxBackend
from assay.sandbox.rpc.executions import Execution, Executions, Work
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages import methods
from assay.sandbox.rpc.messages.codec import (
    CHUNK_BYTES,
    ISOLATION_NUMBERS,
    MAX_MESSAGE_BYTES,
    MessageError,
    check_id,
    from_equipment,
    from_limits,
    from_path,
    from_program,
    from_source,
    seconds,
    to_file,
    to_result,
)
from assay.sandbox.rpc.messages.methods import Method
from assay.sandbox.rpc.open_sandboxes import OPEN_GATE, AdmissionPolicy, ExecutionRequest, Places

_FILES_AT_ONCE: Final = 500
_MOST_FILE_BYTES: Final = 64 << 20
"""How much of a file a read returns unless the client sets another limit."""

Requests = AsyncIterator[Any]
_Answer = Callable[[Requests], AsyncGenerator[Message]]
_Request = TypeVar("_Request", bound=Message)
_Response = TypeVar("_Response", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxServiceConfig:
    """Lease, result lifetime and facts that a service gives its client."""

    lease_s: float = 0.0
    """How long an unused sandbox stays open; 0: as long as the service."""
    result_ttl_s: float = 0.0
    """How long a client can fetch the result of an execution again."""
    instance: str = field(default_factory=lambda: secrets.token_hex(16))
    digest: str = ""
    toolchains: tuple[str, ...] = ()


class SandboxService:
    """Holds the open sandboxes and executions of one client."""

    def __init__(
        self,
        backend: SandboxBackend,
        tasks: anyio.abc.TaskGroup,
        *,
        terms: SandboxServiceConfig | None = None,
        gate: AdmissionPolicy = OPEN_GATE,
    ) -> None:
        self._backend = backend
        self._tasks = tasks
        self._terms = terms or SandboxServiceConfig()
        self._gate = gate
        self._places = Places(backend, tasks, gate)
        self._executions = Executions(result_ttl_s=self._terms.result_ttl_s)
        self._answers = self._register()

    def answer(self, method: Method[Any, Any], requests: Requests) -> AsyncGenerator[Message]:
        """Yield the answers to one call. Raises the errors of the ports, and `MessageError`."""
        return self._answers[method.name](requests)

    async def close(self) -> None:
        """Close every sandbox, which ends all programs."""
        await self._places.close_all()

    async def close_unasked(self) -> None:
        """Close the sandboxes whose lease has ended."""
        await self._places.close_unasked(self._terms.lease_s)

    @property
    def open_sandboxes(self) -> int:
        return len(self._places)

    def _register(self) -> dict[str, _Answer]:
        return {
            methods.GET_CAPABILITIES.name: _one(self._get_capabilities),
            methods.OPEN_SANDBOX.name: _one(self._open_sandbox),
            methods.CLOSE_SANDBOX.name: _one(self._close_sandbox),
            methods.RENEW_SANDBOXES.name: _one(self._renew_sandboxes),
            methods.EXECUTE.name: _one(self._execute),
            methods.EXECUTE_STREAM.name: _many(self._execute_stream),
            methods.ATTACH_STREAM.name: _many(self._attach_stream),
            methods.STOP_EXECUTION.name: _one(self._stop_execution),
            methods.CANCEL_EXECUTIONS.name: _one(self._cancel_executions),
            methods.WRITE_FILE.name: self._write_file,
            methods.READ_FILE.name: _many(self._read_file),
            methods.LIST_FILES.name: _many(self._list_files),
            methods.MAKE_DIRECTORY.name: _one(self._make_directory),
            methods.REMOVE_PATH.name: _one(self._remove_path),
            methods.OPEN_INTERPRETER.name: _one(self._open_interpreter),
            methods.BRANCH_INTERPRETER.name: _one(self._branch_interpreter),
            methods.CLOSE_INTERPRETER.name: _one(self._close_interpreter),
            methods.RUN_CELL.name: _many(self._run_cell),
            methods.INTERRUPT_CELL.name: _one(self._interrupt_cell),
        }

    async def _get_capabilities(self, request: pb.GetCapabilitiesRequest) -> pb.Capabilities:
        del request
        return pb.Capabilities(
            backend=self._backend.name,
            isolation=ISOLATION_NUMBERS[self._backend.isolation],
            instance=self._terms.instance,
            lease_s=self._terms.lease_s,
            max_message_bytes=MAX_MESSAGE_BYTES,
            interpreters=True,
            branches=True,
            digest=self._terms.digest,
            toolchains=self._terms.toolchains,
        )

    async def _open_sandbox(self, request: pb.OpenSandboxRequest) -> pb.OpenSandboxResponse:
        await self._places.open(
            check_id(request.sandbox_id, of="a sandbox"),
            from_limits(request.limits),
            from_equipment(request.equipment),
        )
        return pb.OpenSandboxResponse(isolation=ISOLATION_NUMBERS[self._backend.isolation])

    async def _close_sandbox(self, request: pb.CloseSandboxRequest) -> pb.CloseSandboxResponse:
        await self._places.close(request.sandbox_id)
        return pb.CloseSandboxResponse()

    async def _renew_sandboxes(
        self, request: pb.RenewSandboxesRequest
    ) -> pb.RenewSandboxesResponse:
        gone: list[str] = []
        for sandbox_id in request.sandbox_ids:
            try:
                with self._places.find(sandbox_id).used():
                    pass
            except SandboxUnavailableError:
                gone.append(sandbox_id)
        return pb.RenewSandboxesResponse(gone=gone)

    async def _execute(self, request: pb.ExecuteRequest) -> pb.ExecutionResult:
        outcome = await self._begin_program(request).wait()
        match outcome:
            case ExecutionResult():
                return to_result(outcome)
            case CellResult():
                raise MessageError(f"{request.execution_id!r} is the id of a cell")
            case Exception():
                raise outcome

    def _execute_stream(self, request: pb.ExecuteRequest) -> AsyncGenerator[pb.ExecutionEvent]:
        return self._begin_program(request).events()

    def _attach_stream(self, request: pb.AttachStreamRequest) -> AsyncGenerator[pb.ExecutionEvent]:
        execution = self._executions.find(request.execution_id)
        if execution is None:
            raise SandboxUnavailableError(
                "there is no such execution (any more)", dispatch="never_started"
            )
        return execution.events(request.stdout_offset, request.stderr_offset)

    def _begin_program(self, request: pb.ExecuteRequest) -> Execution:
        execution_id = check_id(request.execution_id, of="an execution")
        if known := self._known(execution_id, request):
            return known
        program = from_program(request.program)
        if request.HasField("fresh"):
            return self._begin_fresh(execution_id, request)
        place = self._places.find(request.sandbox_id)
        attempt = ExecutionRequest(
            execution_id=execution_id,
            work=program,
            limits=place.limits,
            equipment=place.equipment,
        )

        async def work(on_output: OnOutput) -> ExecutionResult:
            with place.used():
                return await place.sandbox.run(program, on_output=on_output)

        return self._begin(attempt, work, request)

    def _begin_fresh(self, execution_id: str, request: pb.ExecuteRequest) -> Execution:
        program = from_program(request.program)
        limits = from_limits(request.fresh.limits)
        equipment = from_equipment(request.fresh.equipment)
        files = [
            (from_path(file.path), file.content, file.executable) for file in request.fresh.files
        ]

        async def work(on_output: OnOutput) -> ExecutionResult:
            async with self._places.opened(limits, equipment) as sandbox:
                for path, content, executable in files:
                    await sandbox.write_file(path, content, executable=executable)
                return await sandbox.run(program, on_output=on_output)

        attempt = ExecutionRequest(
            execution_id=execution_id,
            work=program,
            limits=limits,
            equipment=equipment,
            files=tuple((path, content) for path, content, _ in files),
        )
        return self._begin(attempt, work, request)

    def _known(self, execution_id: str, request: Message) -> Execution | None:
        """Return an execution that was requested before; some transports repeat requests.

        Raises:
            UsageError: If this id was used for another request.
        """
        known = self._executions.find(execution_id)
        if known is not None and known.asked_for != _digest(request):
            raise UsageError(
                f"the execution id {execution_id!r} is taken by another program",
                hint="use a new id for each execution",
            )
        return known

    def _begin(self, attempt: ExecutionRequest, work: Work, request: Message) -> Execution:
        execution = Execution(
            attempt.execution_id, attempt.limits.output_bytes, asked_for=_digest(request)
        )
        self._executions.add(execution)

        async def guarded(on_output: OnOutput) -> ExecutionResult | CellResult:
            async with self._gate.executing(attempt) as note:
                ended = await work(on_output)
                note(ended.execution if isinstance(ended, CellResult) else ended)
                return ended

        async def carry_out() -> None:
            await execution.carry_out(guarded)
            self._executions.note_end(execution)

        self._tasks.start_soon(carry_out)
        return execution

    async def _stop_execution(self, request: pb.StopExecutionRequest) -> pb.StopExecutionResponse:
        execution = self._executions.find(request.execution_id)
        if execution is None:
            self._executions.forbid(check_id(request.execution_id, of="an execution"))
        else:
            execution.stop()
            await execution.wait()
        return pb.StopExecutionResponse()

    async def _cancel_executions(
        self, request: pb.CancelExecutionsRequest
    ) -> pb.CancelExecutionsResponse:
        with self._places.find(request.sandbox_id).used() as place:
            await place.sandbox.cancel()
        return pb.CancelExecutionsResponse()

    async def _write_file(self, requests: Requests) -> AsyncGenerator[pb.WriteFileResponse]:
        first: pb.WriteFileRequest = await _first(requests)
        with self._places.find(first.sandbox_id).used() as place:
            content = bytearray(first.content)
            async for more in requests:
                content += more.content
                if len(content) > place.limits.disk_mb << 20:
                    raise WorkspaceFullError(f"no room for the content of {first.path!r:.200}")
            path = from_path(first.path)
            self._gate.check_file(path, bytes(content))
            await place.sandbox.write_file(path, bytes(content), executable=first.executable)
        yield pb.WriteFileResponse()

    async def _read_file(self, request: pb.ReadFileRequest) -> AsyncGenerator[pb.ReadFileResponse]:
        max_bytes = request.max_bytes if request.HasField("max_bytes") else _MOST_FILE_BYTES
        with self._places.find(request.sandbox_id).used() as place:
            content = await place.sandbox.read_file(from_path(request.path), max_bytes=max_bytes)
            for begin in range(0, max(1, len(content)), CHUNK_BYTES):
                yield pb.ReadFileResponse(content=content[begin : begin + CHUNK_BYTES])

    async def _list_files(
        self, request: pb.ListFilesRequest
    ) -> AsyncGenerator[pb.ListFilesResponse]:
        with self._places.find(request.sandbox_id).used() as place:
            found = await place.sandbox.list_files(from_path(request.path))
            for begin in range(0, len(found), _FILES_AT_ONCE):
                some = found[begin : begin + _FILES_AT_ONCE]
                yield pb.ListFilesResponse(files=[to_file(file) for file in some])

    async def _make_directory(self, request: pb.MakeDirectoryRequest) -> pb.MakeDirectoryResponse:
        with self._places.find(request.sandbox_id).used() as place:
            await place.sandbox.make_directory(from_path(request.path))
        return pb.MakeDirectoryResponse()

    async def _remove_path(self, request: pb.RemovePathRequest) -> pb.RemovePathResponse:
        with self._places.find(request.sandbox_id).used() as place:
            await place.sandbox.remove_path(from_path(request.path))
        return pb.RemovePathResponse()

    async def _open_interpreter(
        self, request: pb.OpenInterpreterRequest
    ) -> pb.OpenInterpreterResponse:
        interpreter_id = check_id(request.interpreter_id, of="an interpreter")
        with self._places.find(request.sandbox_id).used() as place:
            await self._places.open_interpreter(
                place, interpreter_id, place.sandbox.open_interpreter()
            )
        return pb.OpenInterpreterResponse()

    async def _branch_interpreter(
        self, request: pb.BranchInterpreterRequest
    ) -> pb.BranchInterpreterResponse:
        branch_id = check_id(request.branch_id, of="an interpreter")
        place, interpreter = self._places.find_interpreter(request.interpreter_id)
        with place.used():
            await self._places.open_interpreter(place, branch_id, interpreter.branch())
        return pb.BranchInterpreterResponse()

    async def _close_interpreter(
        self, request: pb.CloseInterpreterRequest
    ) -> pb.CloseInterpreterResponse:
        await self._places.close_interpreter(request.interpreter_id)
        return pb.CloseInterpreterResponse()

    def _run_cell(self, request: pb.RunCellRequest) -> AsyncGenerator[pb.ExecutionEvent]:
        return self._begin_cell(request).events()

    def _begin_cell(self, request: pb.RunCellRequest) -> Execution:
        execution_id = check_id(request.execution_id, of="an execution")
        if known := self._known(execution_id, request):
            return known
        place, interpreter = self._places.find_interpreter(request.interpreter_id)
        source = from_source(request.source)
        timeout_s = None
        if request.HasField("timeout_s"):
            timeout_s = seconds(request.timeout_s, of="timeout_s")

        async def work(on_output: OnOutput) -> CellResult:
            with place.used():
                return await interpreter.run_cell(source, timeout_s=timeout_s, on_output=on_output)

        attempt = ExecutionRequest(
            execution_id=execution_id, work=source, limits=place.limits, equipment=place.equipment
        )
        return self._begin(attempt, work, request)

    async def _interrupt_cell(self, request: pb.InterruptCellRequest) -> pb.InterruptCellResponse:
        place, interpreter = self._places.find_interpreter(request.interpreter_id)
        with place.used():
            await interpreter.interrupt()
        return pb.InterruptCellResponse()


def _digest(request: Message) -> bytes:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()


async def _first(requests: Requests) -> Any:
    try:
        return await anext(requests)
    except StopAsyncIteration:
        raise MessageError("a call without a request") from None


def _one(act: Callable[[_Request], Awaitable[_Response]]) -> _Answer:
    async def answer(requests: Requests) -> AsyncGenerator[Message]:
        yield await act(await _first(requests))

    return answer


def _many(act: Callable[[_Request], AsyncGenerator[_Response]]) -> _Answer:
    async def answer(requests: Requests) -> AsyncGenerator[Message]:
        async with aclosing(act(await _first(requests))) as responses:
            async for response in responses:
                yield response

    return answer
