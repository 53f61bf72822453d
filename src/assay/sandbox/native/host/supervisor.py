"""Supervises one execution from its first byte to the death of its last process.

The result combines the reports of PID 1, the kernel's counters and our own kills. Output is read at
a limited pace, because a program that writes single bytes would cost a wakeup for each.
"""

import json
import math
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import anyio

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import (
    BlockedConnection,
    ExecutionResult,
    Isolation,
    LimitName,
    Limits,
    OutputChunk,
    Reason,
    Timings,
)
from assay.contracts.ports import OnOutput
from assay.sandbox.native.host import jail
from assay.sandbox.native.host.jail import Descriptor, Jail
from assay.sandbox.native.host.usage_monitor import Usage, Watch
from assay.sandbox.native.kernel.cgroups import GroupUsage
from assay.sandbox.native.kernel.open_files import TOO_FEW_HINT
from assay.sandbox.output import Capture

READ_EVERY_S: Final = 0.004
"""The mean time between two small reads of one stream."""
READS_AHEAD: Final = 16
"""The number of small reads in a row without a pause, as after a time without output."""
LARGE_BYTES: Final = 4096
"""The size from which a read needs no pause."""


class Pace:
    """The rate limit for small reads of one stream."""

    def __init__(self) -> None:
        self._ahead = float(READS_AHEAD)
        self._last = 0.0

    def pause_s(self, size: int, now: float) -> float:
        """Return how long to pause a stream after a read of `size` bytes."""
        if size >= LARGE_BYTES:
            return 0.0
        earned = (now - self._last) / READ_EVERY_S
        self._ahead = min(float(READS_AHEAD), self._ahead + earned) - 1
        self._last = now
        return max(0.0, -self._ahead * READ_EVERY_S)


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
            ended = jail.wait_status(self._watch_worker)
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


_LIMIT_OF: Final[dict[Reason, LimitName]] = {
    Reason.TIMED_OUT: "wall_s",
    Reason.CPU_TIME: "cpu_s",
    Reason.OUT_OF_MEMORY: "memory_mb",
    Reason.TOO_MANY_PROCESSES: "processes",
    Reason.DISK_FULL: "disk_mb",
    Reason.OUTPUT_LIMIT: "output_bytes",
}
_REASON_OF: Final = {name: reason for reason, name in _LIMIT_OF.items()}
_FATAL: Final[tuple[LimitName, ...]] = ("memory_mb", "cpu_s", "processes", "disk_mb")
"""Limits that explain a failure if they were hit, the likeliest cause first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultInputs:
    """Everything known about one execution after its end."""

    ending: RawResult
    usage: GroupUsage
    limits: Limits
    disk_full: bool
    timings: Timings
    isolation: Isolation
    denials: tuple[BlockedConnection, ...] = ()


def conclude(evidence: ResultInputs) -> ExecutionResult:
    """Build the result of an execution.

    Raises:
        SandboxUnavailableError: If the jail died, but neither Assay nor a limit killed it.
    """
    ending = evidence.ending
    exit_code, signal_number = _exit_of(evidence)
    hit = _limits_hit(evidence, signal_number)
    stderr = ending.stderr.kept
    if "start_failed" in ending.report:
        stderr += f"assay: {ending.report['start_failed']}\n".encode()
    return ExecutionResult(
        exit_code=exit_code,
        signal=signal_number,
        reason=_reason(evidence, hit, exit_code, signal_number),
        stdout_bytes=ending.stdout.kept,
        stderr_bytes=stderr,
        stdout_dropped_bytes=ending.stdout.dropped_bytes,
        stderr_dropped_bytes=ending.stderr.dropped_bytes,
        duration_s=ending.duration_s,
        cpu_s=_cpu_s(evidence),
        peak_memory_bytes=_peak_memory_bytes(evidence),
        limits_hit=hit,
        timings=evidence.timings,
        backend="native",
        isolation=evidence.isolation,
        denials=evidence.denials,
    )


def _exit_of(evidence: ResultInputs) -> tuple[int | None, int | None]:
    """Return exit code or signal of the program; SIGKILL if the whole jail was killed."""
    report = evidence.ending.report
    if "setup_failed" in report:
        raise SandboxUnavailableError(
            f"the sandbox could not be locked: {report['setup_failed']}", dispatch="never_started"
        )
    if "ended" in report:
        try:
            code = os.waitstatus_to_exitcode(report["ended"])
        except (TypeError, ValueError, OverflowError) as error:
            raise SandboxUnavailableError(
                "the sandbox does not speak the protocol", dispatch="outcome_unknown"
            ) from error
        return (code, None) if code >= 0 else (None, -code)
    if evidence.ending.killed_for is None and evidence.usage.oom_kills == 0:
        raise SandboxUnavailableError(
            "the sandbox died under the program",
            dispatch="outcome_unknown",
            hint="look at the workspace before you run it again",
        )
    return None, int(signal.SIGKILL)


def _limits_hit(evidence: ResultInputs, signal_number: int | None) -> tuple[LimitName, ...]:
    ending, usage, limits = evidence.ending, evidence.usage, evidence.limits
    killed = ending.killed_for
    over_cpu = signal_number is not None and _cpu_s(evidence) > limits.cpu_s
    facts: tuple[tuple[LimitName, bool], ...] = (
        ("wall_s", killed is Reason.TIMED_OUT),
        ("memory_mb", killed is Reason.OUT_OF_MEMORY or usage.oom_kills > 0),
        # SIGXCPU alone is no evidence: a program can send it to itself.
        ("cpu_s", killed is Reason.CPU_TIME or over_cpu),
        ("processes", usage.refused_forks > 0 or ending.sample.processes >= limits.processes),
        ("disk_mb", killed is Reason.DISK_FULL or evidence.disk_full),
        ("output_bytes", ending.stdout.overflowed or ending.stderr.overflowed),
    )
    return tuple(name for name, true in facts if true)


def _reason(
    evidence: ResultInputs,
    hit: tuple[LimitName, ...],
    exit_code: int | None,
    signal_number: int | None,
) -> Reason:
    ending = evidence.ending
    if ending.killed_for is not None:
        return ending.killed_for
    if "start_failed" in ending.report:
        return Reason.COULD_NOT_START
    if exit_code == 0:
        return Reason.COMPLETED
    for name in _FATAL:
        if name in hit:
            return _REASON_OF[name]
    return Reason.COMPLETED if signal_number is None else Reason.SIGNALLED


def _cpu_s(evidence: ResultInputs) -> float:
    if evidence.usage.cpu_s is not None:
        return evidence.usage.cpu_s
    return max(float(evidence.ending.report.get("cpu_s", 0.0)), evidence.ending.sample.cpu_s)


def _peak_memory_bytes(evidence: ResultInputs) -> int:
    if evidence.usage.peak_memory_bytes is not None:
        return evidence.usage.peak_memory_bytes
    grown_kb = int(evidence.ending.report.get("grown_kb", 0))
    return max(evidence.ending.sample.memory_bytes, grown_kb << 10)
