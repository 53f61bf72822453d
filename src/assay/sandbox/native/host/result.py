"""Combines the reports of PID 1, the kernel's counters and our own kills into one result."""

import os
import signal
from dataclasses import dataclass
from typing import Final

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import (
    BlockedConnection,
    ExecutionResult,
    Isolation,
    LimitName,
    Limits,
    Reason,
    Timings,
)
from assay.sandbox.native.host.supervisor import RawResult
from assay.sandbox.native.kernel.cgroups import GroupUsage

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
