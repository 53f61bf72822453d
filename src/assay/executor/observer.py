"""Observer of executions: writes the audit log, and counts metrics."""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from assay.contracts.execution import ExecutionResult
from assay.executor.audit_log import Write, describe_attempt, describe_result
from assay.executor.metrics import Metrics
from assay.sandbox.rpc.admission import ExecutionRequest, Note
from assay.sandbox.rpc.messages.failures import ExecutorBusyError


class Watcher:
    """Logs and counts every request for an execution."""

    def __init__(self, write: Write, metrics: Metrics) -> None:
        self._write = write
        self._metrics = metrics

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
            self._metrics.count_execution(outcome["outcome"], time.perf_counter() - began)
            ended = {"event": "ended", "client": client, "execution": attempt.execution_id}
            self._try_to_write({**ended, **outcome})

    def _try_to_write(self, entry: Mapping[str, Any]) -> None:
        """Log an event that has already happened; a failed write does not change it."""
        with suppress(ExecutorBusyError):  # The process log has the failure.
            self._write(entry)

    def note_attempt(
        self, client: str, attempt: ExecutionRequest, *, outcome: str, why: str
    ) -> None:
        """Log a requested execution that did not start."""
        told = {"event": outcome, "client": client, "why": why}
        self._try_to_write({**told, **describe_attempt(attempt)})

    def note_stranger(self, peer: str, method: str, why: str) -> None:
        """Log an unauthenticated request."""
        self._metrics.count_refusal("stranger")
        self._try_to_write({"event": "refused", "peer": peer, "method": method, "why": why})

    def note_unreadable(self, client: str, method: str) -> None:
        """Log an invalid message from an authenticated client."""
        self._metrics.count_refusal("unreadable")
        why = "not a request of this method"
        self._try_to_write({"event": "refused", "client": client, "method": method, "why": why})

    def note_refusal(self, client: str, why: str) -> None:
        """Count a request of an authenticated client that exceeded its quota."""
        del client  # in the audit log; as a label, client names would use unbounded memory
        self._metrics.count_refusal(why)

    def note_load(self, *, running: int, waiting: int) -> None:
        self._metrics.set_load(running=running, waiting=waiting)

    def note_sandboxes(self, change: int) -> None:
        self._metrics.change_sandboxes(change)

    def note_call(self, method: str, status: str, seconds: float) -> None:
        self._metrics.count_call(method, status, seconds)
