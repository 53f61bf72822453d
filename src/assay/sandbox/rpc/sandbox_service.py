"""Sandbox service: carries out one client's requests on a backend, over any transport.

The caller of `answer` passes a request and forwards the yielded answers. Sandboxes belong to the
client that opened them: other clients have other services and cannot refer to them.
"""

import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio.abc
from google.protobuf.message import Message

from assay.contracts.errors import SandboxUnavailableError, UsageError, WorkspaceFullError
from assay.contracts.execution import CellResult, ExecutionResult
from assay.contracts.ports import OnOutput, SandboxBackend
from assay.sandbox.rpc.executions import Execution, Executions, Work
from assay.sandbox.rpc.layer_manifest import MOST_ENTRIES
from assay.sandbox.rpc.layer_store import LayerStore
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages.codec import (
    CHUNK_BYTES,
    ISOLATIONS,
    MAX_MESSAGE_BYTES,
    MessageError,
    check_id,
    from_equipment,
    from_limits,
    from_path,
    from_program,
    from_source,
    measure,
    to_file,
    to_path,
    to_result,
)
from assay.sandbox.rpc.messages.methods import Method
from assay.sandbox.rpc.open_sandboxes import (
    ADMIT_ALL,
    AdmissionPolicy,
    ExecutionRequest,
    OpenSandboxes,
)

_FILES_AT_ONCE: Final = 500
_MOST_FILE_BYTES: Final = 64 << 20
"""How much of a file a read returns unless the client sets another limit."""


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
    layers_mb: int = 4096
    """The size of all layers of the client; 0: sandboxes do not open from layers here."""
    layers_parent: Path | None = None
    """The folder for layers; None: the folder for temporary files."""


class SandboxService:
    """Holds the open sandboxes and executions of one client."""

    def __init__(
        self,
        backend: SandboxBackend,
        tasks: anyio.abc.TaskGroup,
        *,
        config: SandboxServiceConfig | None = None,
        admission: AdmissionPolicy = ADMIT_ALL,
    ) -> None:
        self._backend = backend
        self._tasks = tasks
        self._config = config or SandboxServiceConfig()
        self._admission = admission
        self._sandboxes = OpenSandboxes(backend, tasks, admission)
        self._layers = LayerStore(
            self._config.layers_mb << 20,
            admission.check_file,
            parent=self._config.layers_parent,
        )
        self._executions = Executions(result_ttl_s=self._config.result_ttl_s)

    async def answer(
        self, method: Method[Any, Any], requests: AsyncIterator[Any]
    ) -> AsyncGenerator[Message]:
        """Yield the answers to one call. Raises the errors of the ports, and `MessageError`.

        The method of this class with the name of the called one carries it out.
        """
        first = await anext(requests, None)
        if first is None:
            raise MessageError("a call without a request")
        act = getattr(self, method.attribute)
        if method.streams_responses:
            async with aclosing(act(first)) as responses:
                async for response in responses:
                    yield response
        elif method.streams_requests:
            yield await act(first, requests)
        else:
            yield await act(first)

    async def close(self) -> None:
        """Close every sandbox, which ends all programs."""
        await self._sandboxes.close_all()
        await self._layers.close()

    async def close_unused(self) -> None:
        """Close the sandboxes whose lease has ended."""
        await self._sandboxes.close_unused(self._config.lease_s)

    async def get_capabilities(self, request: pb.GetCapabilitiesRequest) -> pb.Capabilities:
        del request
        return pb.Capabilities(
            backend=self._backend.name,
            isolation=ISOLATIONS.encode(self._backend.isolation),
            instance=self._config.instance,
            lease_s=self._config.lease_s,
            max_message_bytes=MAX_MESSAGE_BYTES,
            interpreters=True,
            branches=True,
            digest=self._config.digest,
            toolchains=self._config.toolchains,
            layers=bool(self._config.layers_mb),
        )

    async def open_sandbox(self, request: pb.OpenSandboxRequest) -> pb.OpenSandboxResponse:
        await self._sandboxes.open(
            check_id(request.sandbox_id, of="a sandbox"),
            from_limits(request.limits),
            from_equipment(request.equipment),
            self._layers.held(request.layer) if request.layer else None,
        )
        return pb.OpenSandboxResponse(isolation=ISOLATIONS.encode(self._backend.isolation))

    async def close_sandbox(self, request: pb.CloseSandboxRequest) -> pb.CloseSandboxResponse:
        await self._sandboxes.close(request.sandbox_id)
        return pb.CloseSandboxResponse()

    async def renew_sandboxes(self, request: pb.RenewSandboxesRequest) -> pb.RenewSandboxesResponse:
        gone: list[str] = []
        for sandbox_id in request.sandbox_ids:
            try:
                with self._sandboxes.find(sandbox_id).used():
                    pass
            except SandboxUnavailableError:
                gone.append(sandbox_id)
        return pb.RenewSandboxesResponse(gone=gone)

    async def execute(self, request: pb.ExecuteRequest) -> pb.ExecutionResult:
        outcome = await self._begin(request).wait()
        match outcome:
            case ExecutionResult():
                return to_result(outcome)
            case CellResult():
                raise MessageError(f"{request.execution_id!r} is the id of a cell")
            case Exception():
                raise outcome

    def execute_stream(self, request: pb.ExecuteRequest) -> AsyncGenerator[pb.ExecutionEvent]:
        return self._begin(request).events()

    def run_cell(self, request: pb.RunCellRequest) -> AsyncGenerator[pb.ExecutionEvent]:
        return self._begin(request).events()

    def attach_stream(self, request: pb.AttachStreamRequest) -> AsyncGenerator[pb.ExecutionEvent]:
        execution = self._executions.find(request.execution_id)
        if execution is None:
            raise SandboxUnavailableError(
                "there is no such execution (any more)", dispatch="never_started"
            )
        return execution.events(request.stdout_offset, request.stderr_offset)

    def _begin(self, request: pb.ExecuteRequest | pb.RunCellRequest) -> Execution:
        """Start an execution, or return the one that was requested before by the same message.

        Raises:
            UsageError: If this id was used for another request.
        """
        execution_id = check_id(request.execution_id, of="an execution")
        digest = hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
        if known := self._executions.find(execution_id):
            if known.digest != digest:
                raise UsageError(
                    f"the execution id {execution_id!r} is taken by another program",
                    hint="use a new id for each execution",
                )
            return known
        if isinstance(request, pb.RunCellRequest):
            attempt, work = self._prepare_cell(request)
        elif request.HasField("fresh"):
            attempt, work = self._prepare_fresh(request)
        else:
            attempt, work = self._prepare_program(request)
        execution = Execution(execution_id, attempt.limits.output_bytes, digest=digest)
        self._executions.add(execution)

        async def admitted(on_output: OnOutput) -> ExecutionResult | CellResult:
            async with self._admission.executing(attempt) as note:
                ended = await work(on_output)
                note(ended.execution if isinstance(ended, CellResult) else ended)
                return ended

        async def carry_out() -> None:
            await execution.carry_out(admitted)
            self._executions.note_end(execution)

        self._tasks.start_soon(carry_out)
        return execution

    def _prepare_program(self, request: pb.ExecuteRequest) -> tuple[ExecutionRequest, Work]:
        program = from_program(request.program)
        opened = self._sandboxes.find(request.sandbox_id)

        async def work(on_output: OnOutput) -> ExecutionResult:
            with opened.used():
                return await opened.sandbox.run(program, on_output=on_output)

        attempt = ExecutionRequest(
            execution_id=request.execution_id,
            work=program,
            limits=opened.limits,
            equipment=opened.equipment,
        )
        return attempt, work

    def _prepare_fresh(self, request: pb.ExecuteRequest) -> tuple[ExecutionRequest, Work]:
        program = from_program(request.program)
        attempt = ExecutionRequest(
            execution_id=request.execution_id,
            work=program,
            limits=from_limits(request.fresh.limits),
            equipment=from_equipment(request.fresh.equipment),
            files=tuple((from_path(file.path), file.content) for file in request.fresh.files),
        )

        async def work(on_output: OnOutput) -> ExecutionResult:
            opening = self._sandboxes.opened(attempt.limits, attempt.equipment)
            async with opening as sandbox:
                for file, (path, content) in zip(request.fresh.files, attempt.files, strict=True):
                    await sandbox.write_file(path, content, executable=file.executable)
                return await sandbox.run(program, on_output=on_output)

        return attempt, work

    def _prepare_cell(self, request: pb.RunCellRequest) -> tuple[ExecutionRequest, Work]:
        opened, interpreter = self._sandboxes.find_interpreter(request.interpreter_id)
        source = from_source(request.source)
        timeout_s = None
        if request.HasField("timeout_s"):
            timeout_s = measure(request.timeout_s, of="timeout_s")

        async def work(on_output: OnOutput) -> CellResult:
            with opened.used():
                return await interpreter.run_cell(source, timeout_s=timeout_s, on_output=on_output)

        attempt = ExecutionRequest(
            execution_id=request.execution_id,
            work=source,
            limits=opened.limits,
            equipment=opened.equipment,
        )
        return attempt, work

    async def stop_execution(self, request: pb.StopExecutionRequest) -> pb.StopExecutionResponse:
        execution = self._executions.find(request.execution_id)
        if execution is None:
            self._executions.forbid(check_id(request.execution_id, of="an execution"))
        else:
            execution.stop()
            await execution.wait()
        return pb.StopExecutionResponse()

    async def cancel_executions(
        self, request: pb.CancelExecutionsRequest
    ) -> pb.CancelExecutionsResponse:
        with self._sandboxes.find(request.sandbox_id).used() as opened:
            await opened.sandbox.cancel()
        return pb.CancelExecutionsResponse()

    async def write_file(
        self, first: pb.WriteFileRequest, rest: AsyncIterator[pb.WriteFileRequest]
    ) -> pb.WriteFileResponse:
        with self._sandboxes.find(first.sandbox_id).used() as opened:
            content = bytearray(first.content)
            async for more in rest:
                content += more.content
                if len(content) > opened.limits.disk_mb << 20:
                    raise WorkspaceFullError(f"no room for the content of {first.path!r:.200}")
            path = from_path(first.path)
            self._admission.check_file(path, bytes(content))
            await opened.sandbox.write_file(path, bytes(content), executable=first.executable)
        return pb.WriteFileResponse()

    async def read_file(self, request: pb.ReadFileRequest) -> AsyncGenerator[pb.ReadFileResponse]:
        max_bytes = request.max_bytes if request.HasField("max_bytes") else _MOST_FILE_BYTES
        with self._sandboxes.find(request.sandbox_id).used() as opened:
            content = await opened.sandbox.read_file(from_path(request.path), max_bytes=max_bytes)
            for begin in range(0, max(1, len(content)), CHUNK_BYTES):
                yield pb.ReadFileResponse(content=content[begin : begin + CHUNK_BYTES])

    async def list_files(
        self, request: pb.ListFilesRequest
    ) -> AsyncGenerator[pb.ListFilesResponse]:
        with self._sandboxes.find(request.sandbox_id).used() as opened:
            found = await opened.sandbox.list_files(from_path(request.path))
            for begin in range(0, len(found), _FILES_AT_ONCE):
                some = found[begin : begin + _FILES_AT_ONCE]
                yield pb.ListFilesResponse(files=[to_file(file) for file in some])

    async def make_directory(self, request: pb.MakeDirectoryRequest) -> pb.MakeDirectoryResponse:
        with self._sandboxes.find(request.sandbox_id).used() as opened:
            await opened.sandbox.make_directory(from_path(request.path))
        return pb.MakeDirectoryResponse()

    async def remove_path(self, request: pb.RemovePathRequest) -> pb.RemovePathResponse:
        with self._sandboxes.find(request.sandbox_id).used() as opened:
            await opened.sandbox.remove_path(from_path(request.path))
        return pb.RemovePathResponse()

    async def find_changes(
        self, request: pb.FindChangesRequest
    ) -> AsyncGenerator[pb.FindChangesResponse]:
        with self._sandboxes.find(request.sandbox_id).used() as opened:
            found = await opened.sandbox.changes()
            for begin in range(0, len(found.written), _FILES_AT_ONCE):
                some = found.written[begin : begin + _FILES_AT_ONCE]
                yield pb.FindChangesResponse(written=[to_file(file) for file in some])
            for begin in range(0, len(found.removed), _FILES_AT_ONCE):
                paths = found.removed[begin : begin + _FILES_AT_ONCE]
                yield pb.FindChangesResponse(removed=[to_path(path) for path in paths])

    async def offer_layer(
        self, first: pb.OfferLayerRequest, rest: AsyncIterator[pb.OfferLayerRequest]
    ) -> pb.OfferLayerResponse:
        entries = list(first.entries)
        async for more in rest:
            entries += more.entries
            if len(entries) > MOST_ENTRIES:
                raise MessageError(f"a layer with more than {MOST_ENTRIES} entries")
        return await self._layers.offer(first.digest, entries)

    async def put_blobs(
        self, first: pb.PutBlobsRequest, rest: AsyncIterator[pb.PutBlobsRequest]
    ) -> pb.PutBlobsResponse:
        await self._layers.put(first, rest)
        return pb.PutBlobsResponse()

    async def open_interpreter(
        self, request: pb.OpenInterpreterRequest
    ) -> pb.OpenInterpreterResponse:
        interpreter_id = check_id(request.interpreter_id, of="an interpreter")
        with self._sandboxes.find(request.sandbox_id).used() as opened:
            await self._sandboxes.open_interpreter(
                opened, interpreter_id, opened.sandbox.open_interpreter()
            )
        return pb.OpenInterpreterResponse()

    async def branch_interpreter(
        self, request: pb.BranchInterpreterRequest
    ) -> pb.BranchInterpreterResponse:
        branch_id = check_id(request.branch_id, of="an interpreter")
        opened, interpreter = self._sandboxes.find_interpreter(request.interpreter_id)
        with opened.used():
            await self._sandboxes.open_interpreter(opened, branch_id, interpreter.branch())
        return pb.BranchInterpreterResponse()

    async def close_interpreter(
        self, request: pb.CloseInterpreterRequest
    ) -> pb.CloseInterpreterResponse:
        await self._sandboxes.close_interpreter(request.interpreter_id)
        return pb.CloseInterpreterResponse()

    async def interrupt_cell(self, request: pb.InterruptCellRequest) -> pb.InterruptCellResponse:
        opened, interpreter = self._sandboxes.find_interpreter(request.interpreter_id)
        with opened.used():
            await interpreter.interrupt()
        return pb.InterruptCellResponse()
