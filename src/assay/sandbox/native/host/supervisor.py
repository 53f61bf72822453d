"""Supervises one execution from its first byte to the death of its last process."""

import json
import math
import os
import select
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import anyio

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import Limits, OutputChunk, Reason
from assay.contracts.ports import OnOutput
from assay.sandbox.native.host import exit_detection
from assay.sandbox.native.host.jail import Descriptor, Jail
from assay.sandbox.native.host.pacing import Pace
from assay.sandbox.native.host.usage_monitor import Usage, Watch
from assay.sandbox.native.kernel.open_files import TOO_FEW_HINT
from assay.sandbox.output import Capture

Stream = Literal["stdout", "stderr"]

_FIRST_LOOK_S: Final = 0.01
_LOOK_EVERY_S: Final = 0.025
_LARGEST_STATUS: Final = 4096
_WORKER_AND_PID1: Final = 2
_LOOKS: Final = 12
"""About 0.2 milliseconds; waiting for the next event would take far longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawResult:
    """Raw facts about a finished execution; none of them come from the program itself."""

    report: dict[str, Any]
    """The report of PID 1, or of the worker before the program started; may be empty."""
    killed_for: Reason | None
    stdout: Capture
    stderr: Capture
    sample: Usage
    duration_s: float


class Supervision:
    """One running execution. Call `run` once; call `kill` at any time."""

    def __init__(self, cell: Jail, limits: Limits, watch: Watch, on_output: OnOutput) -> None:
        self._cell = cell
        self._watch_worker = cell.visible_worker()
        self._limits = limits
        self._watch = watch
        self._on_output = on_output
        self._killed_for: Reason | None = None
        self._sample = Usage()
        self._report: dict[str, Any] = {}
        self._status = b""
        self._stdout = Capture(limits.output_bytes)
        self._stderr = Capture(limits.output_bytes)
        self._streams: dict[Stream, tuple[Descriptor, Capture]] = {
            "stdout": (cell.stdout, self._stdout),
            "stderr": (cell.stderr, self._stderr),
        }
        self._paces: dict[Stream, Pace] = {"stdout": Pace(), "stderr": Pace()}
        self._resume: dict[Stream, float] = {}
        """When to resume reading each paused stream."""
        self._over = False
        self._handlers: dict[int, Callable[[], object]] = {}
        self._events: select.epoll
        self._deadline = self._next_look = math.inf

    def kill(self, reason: Reason) -> None:
        if self._killed_for is None and "ended" not in self._report:
            self._killed_for = reason
        self._cell.kill()

    async def run(self, request: bytes, stdin: bytes) -> RawResult:
        """Send the program and wait until none of its processes remain."""
        started = time.perf_counter()
        try:
            await self._follow(request, stdin)
        except BaseException:
            self._cell.kill()
            with anyio.CancelScope(shield=True):
                await anyio.wait_readable(self._cell.pidfd)
            raise
        return RawResult(
            report=self._report,
            killed_for=self._killed_for,
            stdout=self._stdout,
            stderr=self._stderr,
            sample=self._sample,
            duration_s=time.perf_counter() - started,
        )

    async def _follow(self, request: bytes, stdin: bytes) -> None:
        """Wait for all events in one task: small programs spend most of their time here."""
        with closing(_new_epoll()) as events:
            self._events = events
            self._feed(self._cell.go, memoryview(request))
            self._feed(self._cell.stdin, memoryview(stdin))
            for stream, (source, _) in self._streams.items():
                self._on(source.number, partial(self._hear, stream))
            self._on(self._cell.status.number, self._read_status)
            self._deadline = time.monotonic() + self._limits.wall_s
            self._next_look = time.monotonic() + _FIRST_LOOK_S
            while not self._over:
                with anyio.move_on_after(self._patience()):
                    await anyio.wait_readable(events.fileno())
                for number, _ in events.poll(0):
                    self._handlers[number]()
                self._resume_reading()
                self._look_after()
        # All writers are dead, so all remaining output is in the pipes already.
        self._drain()

    def _on(self, number: int, handle: Callable[[], object], event: int = select.EPOLLIN) -> None:
        self._handlers[number] = handle
        self._events.register(number, event)

    def _off(self, number: int) -> None:
        del self._handlers[number]
        self._events.unregister(number)

    def _feed(self, pipe: Descriptor, data: memoryview) -> None:
        """Write what fits; write the rest when there is room, then close the pipe."""
        number = pipe.number
        rest = pipe.write_some(data)
        if number in self._handlers:
            self._off(number)
        if rest:
            self._on(number, partial(self._feed, pipe, rest), select.EPOLLOUT)
        else:
            pipe.close()

    def _hear(self, stream: Stream) -> None:
        """Read what is available. The end of stderr is the worker's hint that it exits.

        After many small pieces, reading pauses, so that the next piece is larger.
        """
        number = self._streams[stream][0].number
        size = self._pump(stream)
        if size:
            now = time.monotonic()
            pause_s = self._paces[stream].pause_s(size, now)
            if pause_s > 0:
                self._off(number)
                self._resume[stream] = now + pause_s
        elif stream == "stderr":
            self._off(number)
            self._look_for_the_end()

    def _resume_reading(self) -> None:
        now = time.monotonic() if self._resume else 0.0
        for stream, due in tuple(self._resume.items()):
            if due <= now:
                del self._resume[stream]
                self._on(self._streams[stream][0].number, partial(self._hear, stream))

    def _look_for_the_end(self) -> None:
        """Check several times whether the worker exits: it closes stderr slightly earlier."""
        if self._watch_worker is None:
            return
        ended = None
        for _ in range(_LOOKS):
            # Yield: the worker may be waiting for this processor.
            os.sched_yield()
            ended = exit_detection.wait_status(self._watch_worker)
            if ended is not None:
                break
        # A program with more processes ends when all of them are dead.
        if ended is not None and self._cell.group.processes() == _WORKER_AND_PID1:
            self._report |= {"ended": ended}
            self._over = True

    def _read_status(self) -> None:
        """Read the report of PID 1; if other processes are left, kill them and wait for the end."""
        piece = self._cell.status.read_some()
        *lines, self._status = (self._status + piece).split(b"\n")
        for line in lines:
            self._report |= json.loads(line)
        if piece and "ended" not in self._report and len(self._status) < _LARGEST_STATUS:
            return
        self._off(self._cell.status.number)
        # PID 1 reports whether other processes are left, unless the worker was not its child.
        if self._report["alone"] if "alone" in self._report else self._cell.alone():
            self._over = True
        else:
            self._cell.kill()
            self._on(self._cell.pidfd, self._end)

    def _end(self) -> None:
        self._over = True

    def _pump(self, stream: Stream) -> int:
        """Read what is available and return its size; 0 at the end."""
        source, capture = self._streams[stream]
        data = source.read_some()
        if not data:
            return 0
        capture.add(data)
        self._on_output(OutputChunk(stream=stream, data=data))
        if capture.flooded:
            self.kill(Reason.OUTPUT_LIMIT)
        return len(data)

    def _drain(self) -> None:
        for stream in self._streams:
            with suppress(BlockingIOError):
                while self._pump(stream):
                    pass

    def _patience(self) -> float:
        if self._killed_for is not None:
            return math.inf
        due = min(self._next_look, self._deadline, *self._resume.values())
        return max(0.0, due - time.monotonic())

    def _look_after(self) -> None:
        """Enforce the limits that the kernel does not: wall time, CPU time, sometimes memory."""
        now = time.monotonic()
        if self._killed_for is not None or now < min(self._next_look, self._deadline):
            return
        if now >= self._deadline:
            self.kill(Reason.TIMED_OUT)
            return
        self._next_look = now + _LOOK_EVERY_S
        self._sample = self._watch.look()
        reason = passed_limit(self._sample, self._limits)
        if reason is not None:
            self.kill(reason)


def _new_epoll() -> select.epoll:
    try:
        return select.epoll()
    except OSError as error:
        raise SandboxUnavailableError(
            f"out of descriptors: {error}", dispatch="never_started", hint=TOO_FEW_HINT
        ) from error


def passed_limit(sample: Usage, limits: Limits) -> Reason | None:
    """Return the first exceeded limit that the kernel does not enforce; None if there is none."""
    if sample.memory_bytes > limits.memory_mb << 20:
        return Reason.OUT_OF_MEMORY
    if sample.cpu_s > limits.cpu_s:
        return Reason.CPU_TIME
    if sample.processes > limits.processes:
        return Reason.TOO_MANY_PROCESSES
    if sample.disk_bytes > limits.disk_mb << 20:
        return Reason.DISK_FULL
    return None
