"""Follows one execution from its first byte to the death of its last process."""

import json
import time
from dataclasses import dataclass
from typing import Any, Final, Literal

import anyio
import anyio.lowlevel

from assay.contracts.execution import Limits, OutputChunk, Reason
from assay.contracts.ports import OnOutput
from assay.sandbox.native.cell import Cell, Descriptor
from assay.sandbox.native.watch import Sample, Watch
from assay.sandbox.output import Capture

_FIRST_LOOK_S: Final = 0.01
_LOOK_EVERY_S: Final = 0.025
_LARGEST_STATUS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is known once everything is dead; nothing in it comes from the program itself."""

    report: dict[str, Any]
    """What PID 1, or the worker before the program, had to say; empty if neither came to it."""
    killed_for: Reason | None
    stdout: Capture
    stderr: Capture
    sample: Sample
    duration_s: float


def _first(error: BaseException) -> BaseException:
    """What went wrong, without the groups it came wrapped in: a listener's error is its own."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - a group of any
    return error  # pyright: ignore[reportUnknownVariableType] - see above


class Supervision:
    """One execution under way. `run` once; `kill` at any time."""

    def __init__(self, cell: Cell, limits: Limits, watch: Watch, on_output: OnOutput) -> None:
        self._cell = cell
        self._limits = limits
        self._watch = watch
        self._on_output = on_output
        self._killed_for: Reason | None = None
        self._sample = Sample()
        self._report: dict[str, Any] = {}
        self._stdout = Capture(limits.output_bytes)
        self._stderr = Capture(limits.output_bytes)

    def kill(self, reason: Reason) -> None:
        if self._killed_for is None and "ended" not in self._report:
            self._killed_for = reason
        self._cell.kill()

    async def run(self, request: bytes, stdin: bytes) -> Ending:
        """Hand over the program and stay until nothing of it is left."""
        started = time.perf_counter()
        try:
            await self._follow(request, stdin)
        except BaseException as error:  # noqa: BLE001 - raised again once everything is dead
            self._cell.kill()
            with anyio.CancelScope(shield=True):
                await anyio.wait_readable(self._cell.pidfd)
            raise _first(error) from None
        return Ending(
            report=self._report,
            killed_for=self._killed_for,
            stdout=self._stdout,
            stderr=self._stderr,
            sample=self._sample,
            duration_s=time.perf_counter() - started,
        )

    async def _follow(self, request: bytes, stdin: bytes) -> None:
        async with anyio.create_task_group() as helpers:
            for pipe, data in ((self._cell.go, request), (self._cell.stdin, stdin)):
                # Most input fits into the pipe at once and needs no task of its own.
                if rest := pipe.write_some(memoryview(data)):
                    helpers.start_soon(pipe.write_and_close, rest)
                else:
                    pipe.close()
            helpers.start_soon(self._look_after)
            async with anyio.create_task_group() as streams:
                streams.start_soon(self._pump, "stdout", self._cell.stdout, self._stdout)
                streams.start_soon(self._pump, "stderr", self._cell.stderr, self._stderr)
                await self._read_status()
                if not self._report.get("alone"):
                    await anyio.wait_readable(self._cell.pidfd)
            helpers.cancel_scope.cancel()

    async def _read_status(self) -> None:
        """Collect what comes over the status pipe until it closes or PID 1 has reported."""
        text = b""
        while len(text) < _LARGEST_STATUS and "ended" not in self._report:
            piece = await self._cell.status.read()
            if not piece:
                return
            *lines, text = (text + piece).split(b"\n")
            for line in lines:
                self._report |= json.loads(line)

    async def _pump(
        self, stream: Literal["stdout", "stderr"], source: Descriptor, capture: Capture
    ) -> None:
        while data := await source.read():
            capture.add(data)
            self._on_output(OutputChunk(stream=stream, data=data))
            if capture.flooded:
                self.kill(Reason.OUTPUT_LIMIT)
            # A program that never stops writing must not keep the clock from being looked at.
            await anyio.lowlevel.checkpoint()

    async def _look_after(self) -> None:
        """Enforce what the kernel does not: wall time, total processor time, sometimes memory."""
        deadline = time.monotonic() + self._limits.wall_s
        pause = _FIRST_LOOK_S
        while self._killed_for is None:
            left = deadline - time.monotonic()
            if left <= 0:
                self.kill(Reason.TIMED_OUT)
                return
            await anyio.sleep(min(pause, left))
            pause = _LOOK_EVERY_S
            self._sample = self._watch.look()
            self._enforce(self._sample)

    def _enforce(self, sample: Sample) -> None:
        if sample.memory_bytes > self._limits.memory_mb << 20:
            self.kill(Reason.OUT_OF_MEMORY)
        elif sample.cpu_s > self._limits.cpu_s:
            self.kill(Reason.CPU_TIME)
        elif sample.processes > self._limits.processes:
            self.kill(Reason.TOO_MANY_PROCESSES)
        elif sample.disk_bytes > self._limits.disk_mb << 20:
            self.kill(Reason.DISK_FULL)
