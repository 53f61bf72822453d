"""Stateful interpreter at E2B: a context of the service's own code interpreter.

The service cannot roll a cell back. A stopped cell is interrupted, and its effects stay. A cell
that ends its interpreter loses all variables, and that is an error.
"""

import asyncio
import base64
import json
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from assay.contracts.errors import SandboxUnavailableError, UsageError
from assay.contracts.execution import (
    CellError,
    CellResult,
    ExecutionResult,
    Isolation,
    LimitName,
    Limits,
    OutputChunk,
    Reason,
    RichOutput,
    Timings,
)
from assay.contracts.ports import Interpreter, OnOutput, ignore_output
from assay.sandbox.e2b.vm import Machine, explain, gone
from assay.sandbox.output import Capture

if TYPE_CHECKING:
    from e2b_code_interpreter import (  # pyright: ignore[reportMissingTypeStubs] - it has none
        Context,
        Execution,
        OutputMessage,
        Result,
    )

_TEXTS: Final = {
    "text": "text/plain",
    "html": "text/html",
    "markdown": "text/markdown",
    "svg": "image/svg+xml",
    "latex": "text/latex",
    "javascript": "text/javascript",
}
_IMAGES: Final = {"png": "image/png", "jpeg": "image/jpeg", "pdf": "application/pdf"}
_LARGEST_FORM_BYTES: Final = 8 << 20
_GONE: Final = ("context", "kernel")


@asynccontextmanager
async def open_interpreter(machine: Machine, limits: Limits) -> AsyncGenerator["E2BInterpreter"]:
    """Start an interpreter in the machine; leaving the context ends it.

    Raises:
        SandboxUnavailableError: If none can be started.
    """
    try:
        context = await machine.sdk.create_code_context(cwd=str(machine.workspace))
    except Exception as error:
        failure = explain(error, dispatch="never_started", address=machine.address)
        raise SandboxUnavailableError(
            f"no interpreter can be started: {failure}",
            dispatch="never_started",
            hint="its template must have E2B's code interpreter, as code-interpreter-v1 has",
        ) from error
    interpreter = E2BInterpreter(machine, context, limits)
    try:
        await interpreter.set_mark()
        yield interpreter
    finally:
        interpreter.close()
        with anyio.move_on_after(5, shield=True), suppress(Exception):
            await machine.sdk.remove_code_context(context)


class E2BInterpreter:
    """See `assay.contracts.ports.Interpreter`."""

    def __init__(self, machine: Machine, context: "Context", limits: Limits) -> None:
        self._machine = machine
        self._context = context
        self._limits = limits
        self._turn = anyio.Lock()
        self._mark = secrets.token_hex(8)
        self._closed = False
        self._cells = 0
        self._cell: _Cell | None = None

    def close(self) -> None:
        """Accept no more cells."""
        self._closed = True

    async def set_mark(self) -> None:
        """Set a marker variable that is lost when the interpreter restarts."""
        await self._ask(f"__import__('sys').assay_mark = {self._mark!r}", _Cell(self._limits))

    async def _is_alive(self) -> bool:
        """Check the marker: the service restarts a dead interpreter without notice."""
        listening = _Cell(Limits())
        await self._ask("print(getattr(__import__('sys'), 'assay_mark', ''))", listening)
        return self._mark in listening.printed

    async def run_cell(
        self, source: str, *, timeout_s: float | None = None, on_output: OnOutput = ignore_output
    ) -> CellResult:
        wall_s = min(timeout_s or self._limits.wall_s, self._limits.wall_s)
        arrived = time.perf_counter()
        async with self._turn:
            if self._closed:
                raise SandboxUnavailableError("the interpreter is closed", dispatch="never_started")
            begun = time.perf_counter()
            self._cells += 1
            self._cell = cell = _Cell(self._limits, on_output)
            # A separate task, so that a cancelled caller does not lose the cell.
            asking = asyncio.ensure_future(self._ask(source, cell))
            try:
                with anyio.move_on_after(wall_s) as clock:
                    await cell.wait_for(asking)
                if clock.cancelled_caught:
                    cell.end_for(Reason.TIMED_OUT)
            finally:
                await _stop(asking)
                self._cell = None
            timings = Timings(
                queue_s=begun - arrived, prepare_s=0.0, run_s=time.perf_counter() - begun
            )
            if cell.failure is not None:
                raise cell.failure
            if cell.ended_for is None:
                cell.take(asking)
            if not await self._is_alive():
                raise SandboxUnavailableError(
                    "the interpreter ended, and its variables are gone",
                    dispatch="outcome_unknown",
                    hint="open another one, and run the cells again",
                )
        return cell.result(self._cells, timings)

    async def _ask(self, source: str, cell: "_Cell") -> "Execution":
        try:
            return await self._machine.sdk.run_code(
                source,
                context=self._context,
                on_stdout=cell.hear_stdout,
                on_stderr=cell.hear_stderr,
                timeout=0,
            )
        except Exception as error:
            if any(word in str(error).lower() for word in _GONE):
                raise gone("outcome_unknown") from error
            raise explain(
                error, dispatch="outcome_unknown", address=self._machine.address
            ) from error

    async def interrupt(self) -> None:
        if self._cell is not None:
            self._cell.end_for(Reason.CANCELLED)

    def branch(self) -> AbstractAsyncContextManager[Interpreter]:
        raise UsageError(
            "an interpreter at E2B cannot be copied: the service has no fork of a running context",
            hint="run the cells again in a second interpreter, or use --backend native",
        )


async def _stop(asking: "asyncio.Future[Any]") -> None:
    """Close the stream: the service then interrupts the cell."""
    if not asking.done():
        asking.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([asking], timeout=5)


class _Cell:
    """The output of one cell so far, and how it ended."""

    def __init__(self, limits: Limits, on_output: OnOutput = ignore_output) -> None:
        self._limits = limits
        self._on_output = on_output
        self._stdout = Capture(limits.output_bytes)
        self._stderr = Capture(limits.output_bytes)
        self._ending = asyncio.Event()
        self._outputs: list[RichOutput] = []
        self._error: CellError | None = None
        self.ended_for: Reason | None = None
        self.failure: BaseException | None = None

    @property
    def printed(self) -> str:
        return self._stdout.kept.decode("utf-8", "replace")

    def end_for(self, reason: Reason) -> None:
        self.ended_for = self.ended_for or reason
        self._ending.set()

    async def wait_for(self, asking: "asyncio.Future[Execution]") -> None:
        """Wait until the cell has ended or has to be stopped."""
        asking.add_done_callback(lambda _: self._ending.set())
        await self._ending.wait()

    def hear_stdout(self, message: "OutputMessage") -> None:
        self._hear("stdout", self._stdout, message)

    def hear_stderr(self, message: "OutputMessage") -> None:
        self._hear("stderr", self._stderr, message)

    def _hear(self, stream: Any, capture: Capture, message: "OutputMessage") -> None:
        data = str(message.line).encode("utf-8", "replace")
        capture.add(data)
        try:
            self._on_output(OutputChunk(stream=stream, data=data))
        except BaseException as error:  # noqa: BLE001 - for the caller, not for the SDK
            self.failure = self.failure or error
            self._ending.set()
        if capture.flooded:
            self.end_for(Reason.OUTPUT_LIMIT)

    def take(self, asking: "asyncio.Future[Execution]") -> None:
        """Store the service's result of a cell that ended on its own."""
        execution = asking.result()
        self._outputs = [_output_of(result) for result in execution.results]
        if execution.error is not None:
            self._error = CellError(
                name=str(execution.error.name),
                message=str(execution.error.value),
                traceback=tuple(_plain(str(execution.error.traceback)).splitlines()),
            )

    def result(self, number: int, timings: Timings) -> CellResult:
        ended = self.ended_for
        hits: list[LimitName] = []
        if ended is Reason.TIMED_OUT:
            hits.append("wall_s")
        if self._stdout.overflowed or self._stderr.overflowed:
            hits.append("output_bytes")
        execution = ExecutionResult(
            exit_code=None if ended else 0 if self._error is None else 1,
            signal=None,
            reason=ended or Reason.COMPLETED,
            stdout_bytes=self._stdout.kept,
            stderr_bytes=self._stderr.kept,
            stdout_dropped_bytes=self._stdout.dropped_bytes,
            stderr_dropped_bytes=self._stderr.dropped_bytes,
            duration_s=timings.run_s,
            cpu_s=0.0,
            peak_memory_bytes=0,
            limits_hit=tuple(hits),
            timings=timings,
            backend="e2b",
            isolation=Isolation.MACHINE,
        )
        return CellResult(
            number=number,
            execution=execution,
            outputs=tuple(self._outputs),
            error=self._error,
            state="kept",
        )


def _output_of(result: "Result") -> RichOutput:
    forms: dict[str, bytes] = {}
    for name, media_type in _TEXTS.items():
        value = getattr(result, name)
        if isinstance(value, str):
            forms[media_type] = value.encode("utf-8", "replace")
    for name, media_type in _IMAGES.items():
        value = getattr(result, name)
        if isinstance(value, str):
            with suppress(ValueError):
                forms[media_type] = base64.b64decode(value, validate=False)
    value = cast("Any", result).json
    if value is not None:
        forms["application/json"] = json.dumps(value).encode()
    too_large = tuple(name for name, form in forms.items() if len(form) > _LARGEST_FORM_BYTES)
    kept = {name: form for name, form in forms.items() if name not in too_large}
    kind = "value" if result.is_main_result else "display"
    return RichOutput(kind=kind, forms=kept, dropped=too_large)


def _plain(text: str) -> str:
    """Return a traceback without IPython's color codes."""
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)
