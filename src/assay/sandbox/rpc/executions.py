"""Executions on the executor side: each runs while a client reads it, and can be read again.

A buffer holds every output byte that a result keeps, and the last megabyte beyond, so that slow or
reconnecting readers can catch up.
"""

import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final

import anyio

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import CellResult, ExecutionResult, OutputChunk
from assay.contracts.ports import OnOutput
from assay.sandbox.output import Capture
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages.codec import (
    CHUNK_BYTES,
    STREAMS,
    Streamed,
    StreamName,
    to_cell,
    to_result,
)
from assay.sandbox.rpc.messages.failures import to_failure

TAIL_BYTES: Final = 1 << 20


class OutputBuffer(Capture):
    """One output stream of one execution: what a result keeps, and the end of what came later."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        room = self._limit_bytes - len(self._kept)
        super().add(data)
        self._tail += data[room:] if room > 0 else data
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def read(self, offset: int) -> tuple[int, bytes]:
        """Return the output at or after an offset and where it begins; empty if there is none."""
        if offset < len(self._kept):
            return offset, bytes(self._kept[offset : offset + CHUNK_BYTES])
        tail_begins = len(self._kept) + self.dropped_bytes - len(self._tail)
        begin = max(offset, tail_begins)
        within = begin - tail_begins
        return begin, bytes(self._tail[within : within + CHUNK_BYTES])

    @property
    def held_bytes(self) -> int:
        return len(self._kept) + len(self._tail)


Outcome = ExecutionResult | CellResult | Exception
Work = Callable[[OnOutput], Awaitable[ExecutionResult | CellResult]]

MOST_REMEMBERED: Final = 512
MOST_REMEMBERED_BYTES: Final = 64 << 20
UNREAD_S: Final = 1.5
"""How long an execution runs or stays queued after its last reader has left: enough to reconnect
after the connection broke."""


EVENTS_EVERY_S: Final = 0.004
"""How long the service collects output after a small piece. The end is sent without delay."""


class Execution:
    """One program or cell, from its request until the service forgets it."""

    def __init__(self, execution_id: str, output_bytes: int, *, digest: bytes = b"") -> None:
        self.id = execution_id
        self.digest = digest
        """A digest of the request."""
        self.outcome: Outcome | None = None
        self._scope = anyio.CancelScope()
        self._buffers: dict[StreamName, OutputBuffer] = {
            "stdout": OutputBuffer(output_bytes),
            "stderr": OutputBuffer(output_bytes),
        }
        self._changed = anyio.Event()
        self._ended = anyio.Event()
        self._readers = 0

    async def carry_out(self, work: Work) -> None:
        """Run the execution to its end. Stores every outcome and raises nothing."""
        try:
            with self._scope:
                self.outcome = await work(self._listen)
        except Exception as error:  # noqa: BLE001 - passed to the readers of this execution
            self.outcome = error
        finally:
            if self.outcome is None:
                self.outcome = SandboxUnavailableError(
                    "the execution was stopped", dispatch="outcome_unknown"
                )
            self._ended.set()
            self._changed.set()

    def stop(self) -> None:
        self._scope.cancel()

    @contextmanager
    def _read(self) -> Generator[None]:
        """Count as a reader; without readers, the service stops the execution after `UNREAD_S`."""
        self._readers += 1
        self._scope.deadline = math.inf
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._scope.deadline = anyio.current_time() + UNREAD_S

    async def wait(self) -> Outcome:
        """Wait for the end of the execution."""
        with self._read():
            await self._ended.wait()
        assert self.outcome is not None, "an execution that has ended has an outcome"  # noqa: S101 - set before the event
        return self.outcome

    def _listen(self, chunk: OutputChunk) -> None:
        self._buffers[chunk.stream].add(chunk.data)
        self._changed.set()

    async def events(
        self, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> AsyncGenerator[pb.ExecutionEvent]:
        """Yield the output from these offsets on, and then the end."""
        with self._read():
            offsets: dict[StreamName, int] = {"stdout": stdout_offset, "stderr": stderr_offset}
            sequence = 0
            while True:
                # Created before reading, so that no change goes unnoticed in between.
                ended = self._ended.is_set()
                if self._changed.is_set() and not ended:
                    self._changed = anyio.Event()
                changed = self._changed
                sent_bytes = 0
                wrote = True
                while wrote:
                    wrote = False
                    for stream, buffer in self._buffers.items():
                        begin, data = buffer.read(offsets[stream])
                        if data:
                            wrote = True
                            sequence += 1
                            sent_bytes += len(data)
                            offsets[stream] = begin + len(data)
                            kind = STREAMS.encode(stream)
                            output = pb.Output(stream=kind, offset=begin, data=data)
                            yield pb.ExecutionEvent(sequence=sequence, output=output)
                if ended:
                    yield self._last_event(sequence + 1)
                    return
                await changed.wait()
                if 0 < sent_bytes < CHUNK_BYTES:
                    with anyio.move_on_after(EVENTS_EVERY_S):
                        await self._ended.wait()

    def _last_event(self, sequence: int) -> pb.ExecutionEvent:
        streamed: Streamed = {stream: buffer.kept for stream, buffer in self._buffers.items()}
        match self.outcome:
            case ExecutionResult() as result:
                return pb.ExecutionEvent(sequence=sequence, result=to_result(result, streamed))
            case CellResult() as cell:
                return pb.ExecutionEvent(sequence=sequence, cell=to_cell(cell, streamed))
            case Exception() as error:
                return pb.ExecutionEvent(sequence=sequence, failure=to_failure(error))
            case None:
                raise AssertionError("an execution that has ended has an outcome")

    @property
    def held_bytes(self) -> int:
        held = sum(buffer.held_bytes for buffer in self._buffers.values())
        match self.outcome:
            case ExecutionResult() as result:
                return held + len(result.stdout_bytes) + len(result.stderr_bytes)
            case CellResult() as cell:
                rich = sum(len(form) for output in cell.outputs for form in output.forms.values())
                streams = len(cell.execution.stdout_bytes) + len(cell.execution.stderr_bytes)
                return held + streams + rich
            case _:
                return held


class Executions:
    """The running executions of one client, and for a while the ended ones."""

    def __init__(self, *, result_ttl_s: float) -> None:
        self._result_ttl_s = result_ttl_s
        self._known: dict[str, Execution] = {}
        self._ended: deque[tuple[float, int, str]] = deque()
        self._ended_bytes = 0
        self._never: deque[str] = deque(maxlen=MOST_REMEMBERED)

    def find(self, execution_id: str) -> Execution | None:
        return self._known.get(execution_id)

    def add(self, execution: Execution) -> None:
        """Add an execution that is about to start.

        Raises:
            SandboxUnavailableError: If the client stopped it before it could start.
        """
        if execution.id in self._never:
            raise SandboxUnavailableError(
                "the execution was stopped before it began", dispatch="never_started"
            )
        self._known[execution.id] = execution

    def forbid(self, execution_id: str) -> None:
        """Prevent an execution that was not requested yet from ever starting."""
        self._never.append(execution_id)

    def note_end(self, execution: Execution) -> None:
        """Remember an ended execution, and forget the oldest."""
        now = time.monotonic()
        held_bytes = execution.held_bytes
        self._ended.append((now + self._result_ttl_s, held_bytes, execution.id))
        self._ended_bytes += held_bytes
        while self._ended and (
            self._ended[0][0] <= now
            or len(self._ended) > MOST_REMEMBERED
            or self._ended_bytes > MOST_REMEMBERED_BYTES
        ):
            _, freed_bytes, oldest = self._ended.popleft()
            self._ended_bytes -= freed_bytes
            self._known.pop(oldest, None)
