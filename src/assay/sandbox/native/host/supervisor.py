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
from collections.abc import Callable, Mapping
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

_FIRST_LOOK_S: Final = 0.01
_LOOK_EVERY_S: Final = 0.025
_LARGEST_STATUS: Final = 4096
_WORKER_AND_PID1: Final = 2
_LOOKS: Final = 12
"""About 0.2 milliseconds; waiting for the next event would take far longer."""

Stream = Literal["stdout", "stderr"]


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


class Supervisor:
    """Follows one running program or cell: reads its output and enforces its limits.

    All events are handled in one task, because small programs spend most of their time here.
    """

    def __init__(self, limits: Limits, watch: Watch, on_output: OnOutput) -> None:
        self._limits = limits
        self._watch = watch
        self._on_output = on_output
        self._killed_for: Reason | None = None
        self._sample = Usage()
        self._captures: dict[Stream, Capture] = {
            "stdout": Capture(limits.output_bytes),
            "stderr": Capture(limits.output_bytes),
        }
        self._events: select.epoll
        self._handlers: dict[int, Callable[[], object]] = {}
        self._readers: dict[int, Callable[[], int]] = {}
        """Read what is available and return its size; 0 at the end."""
        self._paces: dict[int, Pace] = {}
        self._resume: dict[int, float] = {}
        """When to resume reading each paused descriptor."""
        self._over = False
        self._deadline = self._next_look = math.inf

    def kill(self, reason: Reason) -> None:
        """End the execution; it may be called at any time."""
        raise NotImplementedError

    def _read_streams(self, streams: Mapping[Stream, Descriptor]) -> None:
        for stream, source in streams.items():
            self._read_from(source, partial(self._pump, stream, source))

    def _read_from(self, source: Descriptor, read: Callable[[], int]) -> None:
        self._readers[source.number] = read
        self._paces[source.number] = Pace()
        self._on(source.number, partial(self._hear, source.number))

    def _start_clocks(self) -> None:
        now = time.monotonic()
        self._deadline, self._next_look = now + self._limits.wall_s, now + _FIRST_LOOK_S

    async def _handle_events(self) -> None:
        """Wait for the end of the execution, then read the rest of its output."""
        while not self._over:
            with anyio.move_on_after(self._wait_s()):
                await anyio.wait_readable(self._events.fileno())
            for number, _ in self._events.poll(0):
                self._handlers[number]()
            if self._resume:
                self._resume_reading(time.monotonic())
            self._enforce_limits()
        # All writers are dead or stopped, so all remaining output is in the pipes already.
        for read in self._readers.values():
            with suppress(BlockingIOError):
                while read():
                    pass

    def _on(self, number: int, handle: Callable[[], object], event: int = select.EPOLLIN) -> None:
        self._handlers[number] = handle
        self._events.register(number, event)

    def _off(self, number: int) -> None:
        del self._handlers[number]
        self._events.unregister(number)

    def _hear(self, number: int) -> None:
        """Read what is available. After many small pieces, pause: the next piece is larger."""
        size = self._readers[number]()
        if not size:
            self._handle_end_of(number)
            return
        now = time.monotonic()
        pause_s = self._paces[number].pause_s(size, now)
        if pause_s > 0:
            self._off(number)
            self._resume[number] = now + pause_s

    def _handle_end_of(self, number: int) -> None:
        """Handle the end of a stream."""

    def _resume_reading(self, now: float) -> None:
        for number in [number for number, due in self._resume.items() if due <= now]:
            del self._resume[number]
            self._on(number, partial(self._hear, number))

    def _pump(self, stream: Stream, source: Descriptor) -> int:
        data = source.read_some()
        if not data:
            return 0
        capture = self._captures[stream]
        capture.add(data)
        self._on_output(OutputChunk(stream=stream, data=data))
        if capture.flooded:
            self.kill(Reason.OUTPUT_LIMIT)
        return len(data)

    def _wait_s(self) -> float:
        due = min(self._deadline, self._look_due(), *self._resume.values())
        return max(0.0, due - time.monotonic())

    def _look_due(self) -> float:
        return self._next_look if self._killed_for is None else math.inf

    def _enforce_limits(self) -> None:
        """Enforce the limits that the kernel does not: wall time, CPU time, sometimes memory."""
        now = time.monotonic()
        if self._over or now < min(self._deadline, self._look_due()):
            return
        if now >= self._deadline:
            self._handle_deadline()
            return
        self._next_look = now + _LOOK_EVERY_S
        self._kill_if_over_limit()

    def _handle_deadline(self) -> None:
        self.kill(Reason.TIMED_OUT)

    def _kill_if_over_limit(self) -> None:
        self._sample = sample = self._watch.look()
        limits = self._limits
        if sample.memory_bytes > limits.memory_mb << 20:
            self.kill(Reason.OUT_OF_MEMORY)
        elif sample.cpu_s > limits.cpu_s:
            self.kill(Reason.CPU_TIME)
        elif sample.processes > limits.processes:
            self.kill(Reason.TOO_MANY_PROCESSES)
        elif sample.disk_bytes > limits.disk_mb << 20:
            self.kill(Reason.DISK_FULL)

    def _raw_result(
        self, report: dict[str, Any], *, started: float, killed_for: Reason | None
    ) -> RawResult:
        return RawResult(
            report=report,
            killed_for=killed_for,
            stdout=self._captures["stdout"],
            stderr=self._captures["stderr"],
            sample=self._sample,
            duration_s=time.perf_counter() - started,
        )


class ProgramRun(Supervisor):
    """One running program. Call `run` once; call `kill` at any time."""

    def __init__(self, jail: Jail, limits: Limits, watch: Watch, on_output: OnOutput) -> None:
        super().__init__(limits, watch, on_output)
        self._jail = jail
        self._visible_worker = jail.visible_worker()
        self._report: dict[str, Any] = {}
        self._status = b""

    def kill(self, reason: Reason) -> None:
        if self._killed_for is None and "ended" not in self._report:
            self._killed_for = reason
        # From here on, only the death of the jail is waited for.
        self._deadline = math.inf
        self._jail.kill()

    async def run(self, request: bytes, stdin: bytes) -> RawResult:
        """Send the program and wait until none of its processes remain."""
        started = time.perf_counter()
        try:
            with closing(_new_epoll()) as self._events:
                self._feed(self._jail.go, memoryview(request))
                self._feed(self._jail.stdin, memoryview(stdin))
                self._read_streams({"stdout": self._jail.stdout, "stderr": self._jail.stderr})
                self._on(self._jail.status.number, self._read_status)
                self._start_clocks()
                await self._handle_events()
        except BaseException:
            self._jail.kill()
            with anyio.CancelScope(shield=True):
                await anyio.wait_readable(self._jail.pidfd)
            raise
        return self._raw_result(self._report, started=started, killed_for=self._killed_for)

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

    def _handle_end_of(self, number: int) -> None:
        """Handle the end of stderr: it is the worker's hint that it exits.

        The hint comes slightly earlier than the exit, so check several times.
        """
        if number != self._jail.stderr.number:
            return
        self._off(number)
        if self._visible_worker is None:
            return
        for _ in range(_LOOKS):
            # Yield: the worker may be waiting for this processor.
            os.sched_yield()
            ended = jail.wait_status(self._visible_worker)
            if ended is not None:
                # A program with more processes ends when all of them are dead.
                if self._jail.group.processes() == _WORKER_AND_PID1:
                    self._report |= {"ended": ended}
                    self._over = True
                return

    def _read_status(self) -> None:
        """Read the report of PID 1; if other processes are left, kill them and wait for the end."""
        piece = self._jail.status.read_some()
        *lines, self._status = (self._status + piece).split(b"\n")
        for line in lines:
            self._report |= json.loads(line)
        if piece and "ended" not in self._report and len(self._status) < _LARGEST_STATUS:
            return
        self._off(self._jail.status.number)
        # PID 1 reports whether other processes are left, unless the worker was not its child.
        if self._report["alone"] if "alone" in self._report else self._jail.alone():
            self._over = True
        else:
            self._jail.kill()
            self._on(self._jail.pidfd, self._end)

    def _end(self) -> None:
        self._over = True


def _new_epoll() -> select.epoll:
    try:
        return select.epoll()
    except OSError as error:
        raise SandboxUnavailableError(
            f"out of descriptors: {error}", dispatch="never_started", hint=TOO_FEW_HINT
        ) from error


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


def build_result(
    raw: RawResult,
    usage: GroupUsage,
    limits: Limits,
    *,
    disk_full: bool,
    timings: Timings,
    isolation: Isolation,
    denials: tuple[BlockedConnection, ...] = (),
) -> ExecutionResult:
    """Build the result of an execution.

    Raises:
        SandboxUnavailableError: If the jail died, but neither Assay nor a limit killed it.
    """
    report, killed, sample = raw.report, raw.killed_for, raw.sample
    exit_code, signal_number = _exit_of(raw, usage)
    cpu_s = usage.cpu_s
    if cpu_s is None:
        cpu_s = max(float(report.get("cpu_s", 0.0)), sample.cpu_s)
    peak_bytes = usage.peak_memory_bytes
    if peak_bytes is None:
        peak_bytes = max(sample.memory_bytes, int(report.get("grown_kb", 0)) << 10)
    facts: tuple[tuple[LimitName, bool], ...] = (
        ("wall_s", killed is Reason.TIMED_OUT),
        ("memory_mb", killed is Reason.OUT_OF_MEMORY or usage.oom_kills > 0),
        # SIGXCPU alone is no evidence: a program can send it to itself.
        (
            "cpu_s",
            killed is Reason.CPU_TIME or (signal_number is not None and cpu_s > limits.cpu_s),
        ),
        ("processes", usage.refused_forks > 0 or sample.processes >= limits.processes),
        ("disk_mb", killed is Reason.DISK_FULL or disk_full),
        ("output_bytes", raw.stdout.overflowed or raw.stderr.overflowed),
    )
    hit: tuple[LimitName, ...] = tuple(name for name, true in facts if true)
    if killed is not None:
        reason = killed
    elif "start_failed" in report:
        reason = Reason.COULD_NOT_START
    elif exit_code != 0 and (fatal := next((name for name in _FATAL if name in hit), None)):
        reason = _REASON_OF[fatal]
    else:
        reason = Reason.COMPLETED if signal_number is None else Reason.SIGNALLED
    stderr = raw.stderr.kept
    if "start_failed" in report:
        stderr += f"assay: {report['start_failed']}\n".encode()
    return ExecutionResult(
        exit_code=exit_code,
        signal=signal_number,
        reason=reason,
        stdout_bytes=raw.stdout.kept,
        stderr_bytes=stderr,
        stdout_dropped_bytes=raw.stdout.dropped_bytes,
        stderr_dropped_bytes=raw.stderr.dropped_bytes,
        duration_s=raw.duration_s,
        cpu_s=cpu_s,
        peak_memory_bytes=peak_bytes,
        limits_hit=hit,
        timings=timings,
        backend="native",
        isolation=isolation,
        denials=denials,
    )


def _exit_of(raw: RawResult, usage: GroupUsage) -> tuple[int | None, int | None]:
    """Return exit code or signal of the program; SIGKILL if the whole jail was killed."""
    report = raw.report
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
    if raw.killed_for is None and usage.oom_kills == 0:
        raise SandboxUnavailableError(
            "the sandbox died under the program",
            dispatch="outcome_unknown",
            hint="look at the workspace before you run it again",
        )
    return None, int(signal.SIGKILL)
