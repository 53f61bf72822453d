"""Follows a remote execution to its end, also when the connection breaks."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from assay.contracts.errors import AssayError, SandboxUnavailableError
from assay.contracts.execution import ExecutionResult, OutputChunk
from assay.contracts.interpreter import CellResult
from assay.contracts.ports import OnOutput
from assay.sandbox.output import FLOOD_FACTOR, Capture
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages import methods
from assay.sandbox.rpc.messages.failures import from_failure
from assay.sandbox.rpc.messages.methods import Method, Request
from assay.sandbox.rpc.messages.primitives import MessageError, member
from assay.sandbox.rpc.messages.results import STREAMS, StreamName, from_cell, from_result
from assay.sandbox.rpc.transport import BrokenOffError, Caller, UnreachableError, distrusting

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
