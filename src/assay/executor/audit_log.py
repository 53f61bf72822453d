"""Audit log of an executor: one JSON line per execution, with client, digest, limits and result.

Code, input, output and environment are never logged.
"""

import errno
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from assay.contracts.errors import UsageError
from assay.contracts.execution import DEFAULT_SPEC, Command, ExecutionResult, PythonCode
from assay.sandbox.rpc.admission import ExecutionRequest
from assay.sandbox.rpc.messages.codec import to_program, to_source
from assay.sandbox.rpc.messages.failures import ExecutorBusyError

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
            told = f"cannot write the audit log {str(self._path)!r}: {error.strerror}"
            _log.error("%s", told)
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
    told: dict[str, Any] = {
        "execution": attempt.execution_id,
        "kind": _kind(attempt),
        "sha256": fingerprint(attempt),
        "limits": asdict(attempt.limits),
    }
    if attempt.equipment != DEFAULT_SPEC:
        told["packages"] = list(attempt.equipment.packages)
        told["hosts"] = list(attempt.equipment.hosts)
    return told


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
