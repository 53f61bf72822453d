"""Observer of executions: writes the audit log, counts metrics, and builds traces.

The audit log has one JSON line per execution, with client, digest, limits and result. Prometheus
metrics have their own registry. OpenTelemetry traces of calls need a configured endpoint.
"""

import errno
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from assay.contracts.errors import UsageError, require
from assay.contracts.execution import DEFAULT_SPEC, Command, ExecutionResult, PythonCode
from assay.sandbox.rpc.messages.codec import to_program, to_source
from assay.sandbox.rpc.messages.failures import SERVICE, ExecutorBusyError
from assay.sandbox.rpc.open_sandboxes import ExecutionRequest, Note
from assay.telemetry.tracing import parent_context

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_AGAIN_S: Final = 10.0
"""Retry delay for clients after a failed write to the log."""
_log = logging.getLogger("assay.executor")

Write = Callable[[Mapping[str, Any]], None]


def now() -> str:
    """Return the current time in the format of the log."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class AuditLog:
    """Appends lines to a file for its owner only; each is written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise UsageError(
                f"cannot write the audit log {str(path)!r}: {error.strerror}",
                hint="set executor.audit_file",
            ) from error

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write a line. An execution that cannot be logged must not run, so this raises.

        Raises:
            ExecutorBusyError: If it cannot be written, as on a full disk.
        """
        line = json.dumps({"time": now(), **entry}, separators=(",", ":")) + "\n"
        try:
            self._append(line.encode())
        except OSError as error:
            problem = f"cannot write the audit log {str(self._path)!r}: {error.strerror}"
            _log.error("%s", problem)
            raise ExecutorBusyError(
                f"the executor cannot write its audit log: {error.strerror}",
                retry_after_s=_AGAIN_S,
            ) from error

    def _append(self, line: bytes) -> None:
        written = os.write(self._descriptor, line)
        if written < len(line):  # The disk became full during the write.
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        os.close(self._descriptor)


def describe_attempt(attempt: ExecutionRequest) -> dict[str, Any]:
    """Describe an execution without its content."""
    entry: dict[str, Any] = {
        "execution": attempt.execution_id,
        "kind": _kind(attempt),
        "sha256": fingerprint(attempt),
        "limits": asdict(attempt.limits),
    }
    if attempt.equipment != DEFAULT_SPEC:
        entry["packages"] = list(attempt.equipment.packages)
        entry["hosts"] = list(attempt.equipment.hosts)
        if attempt.equipment.project:
            entry["project"] = attempt.equipment.project.name
    return entry


def describe_result(result: ExecutionResult) -> dict[str, Any]:
    """Return the measurements of a result."""
    return {
        "outcome": result.reason.value,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "duration_s": round(result.duration_s, 6),
        "cpu_s": round(result.cpu_s, 6),
        "peak_memory_bytes": result.peak_memory_bytes,
        "stdout_bytes": len(result.stdout_bytes) + result.stdout_dropped_bytes,
        "stderr_bytes": len(result.stderr_bytes) + result.stderr_dropped_bytes,
        "limits_hit": list(result.limits_hit),
        "denials": len(result.denials),
    }


def fingerprint(attempt: ExecutionRequest) -> str:
    """Return a digest of an execution: code, arguments, input and environment."""
    if isinstance(attempt.work, str):
        return hashlib.sha256(to_source(attempt.work)).hexdigest()
    message = to_program(attempt.work)
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()


def _kind(attempt: ExecutionRequest) -> str:
    match attempt.work:
        case PythonCode():
            return "python"
        case Command():
            return "command"
        case str():
            return "cell"


with require("metrics of an executor", extra="executor"):
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Observer:
    """Logs every request for an execution, and counts it in metrics with their own registry.

    Labels have few values, regardless of what clients do: client names are in the log only.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self.registry = CollectorRegistry()
        self._executions = Counter(
            "assay_executions", "Executions by how they ended.", ["outcome"], registry=self.registry
        )
        self._seconds = Histogram(
            "assay_execution_seconds",
            "From the turn of an execution to its end.",
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.refusals = Counter(
            "assay_refusals", "Requests that were not let in.", ["why"], registry=self.registry
        )
        self.running = Gauge(
            "assay_executions_running", "Executions that run now.", registry=self.registry
        )
        self.waiting = Gauge(
            "assay_executions_waiting", "Executions in the queue.", registry=self.registry
        )
        self.sandboxes = Gauge(
            "assay_sandboxes_open", "Sandboxes that are open.", registry=self.registry
        )
        self.calls = Histogram(
            "assay_call_seconds",
            "Calls by method and status.",
            ["method", "status"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )

    @contextmanager
    def watching(self, client: str, attempt: ExecutionRequest) -> Generator[Note]:
        """Log the start of an execution, and its end in every case."""
        results: list[ExecutionResult] = []
        self._write({"event": "begun", "client": client, **describe_attempt(attempt)})
        began = time.perf_counter()
        why = ""
        try:
            yield results.append
        except Exception as error:
            # Defects of Assay included; without an error or a result, the execution was cancelled.
            why = type(error).__name__
            raise
        finally:
            outcome: Mapping[str, Any] = (
                describe_result(results[0])
                if results
                else {"outcome": "failed" if why else "stopped", "why": why}
            )
            self._executions.labels(outcome["outcome"]).inc()
            self._seconds.observe(time.perf_counter() - began)
            ended = {"event": "ended", "client": client, "execution": attempt.execution_id}
            self._write_afterwards({**ended, **outcome})

    def note_refusal(self, client: str, attempt: ExecutionRequest, why: str) -> None:
        """Log a requested execution that did not start."""
        refused = {"event": "refused", "client": client, "why": why}
        self._write_afterwards({**refused, **describe_attempt(attempt)})

    def note_rejected_call(self, kind: str, method: str, why: str, **origin: str) -> None:
        """Log and count a call without authentication, or with an invalid message."""
        self.refusals.labels(kind).inc()
        self._write_afterwards({"event": "refused", **origin, "method": method, "why": why})

    def _write_afterwards(self, entry: Mapping[str, Any]) -> None:
        """Log an event that has already happened; a failed write does not change it."""
        with suppress(ExecutorBusyError):  # The process log has the failure.
            self._write(entry)

    @contextmanager
    def served_metrics(self, host: str, port: int) -> Generator[int]:
        """Serve `/metrics` on its own address; yield the port.

        Raises:
            UsageError: If the address is not available.
        """
        try:
            server, thread = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise UsageError(
                f"metrics cannot be served on {host}:{port}: {error.strerror}",
                hint="set executor.metrics_port, 0 for none",
            ) from error
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join(5)


class CallSpan:
    """The span of one call, and the status of its answer."""

    def __init__(self, tracer: "Tracer", method: str, headers: Mapping[str, str]) -> None:
        from opentelemetry.trace import SpanKind

        # Not set as the current span: another context may resume the generator.
        self._span = tracer.start_span(
            f"{SERVICE}/{method}",
            context=parent_context(headers),
            kind=SpanKind.SERVER,
            attributes={"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": method},
        )

    def end(self, status: str) -> None:
        """End the span with the name of the call's status."""
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("rpc.grpc.status", status)
        if status != "OK":
            self._span.set_status(StatusCode.ERROR, status)
        self._span.end()
