"""What is told of an executor's work: to the audit log, to metrics, to the log."""

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
    """Writes down every attempt, and counts."""

    def __init__(self, write: Write, metrics: Metrics) -> None:
        self._write = write
        self._metrics = metrics

    @contextmanager
    def watching(self, client: str, attempt: ExecutionRequest) -> Generator[Note]:
        """Write down that an execution begins, and how it ends, whatever happens."""
        results: list[ExecutionResult] = []
        self._write({"event": "begun", "client": client, **describe_attempt(attempt)})
        began = time.perf_counter()
        why = ""
        try:
            yield results.append
        except Exception as error:
            # A defect of Assay as well; only what is cancelled was stopped.
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
        """Write what has happened already; that it cannot be written changes nothing about it."""
        with suppress(ExecutorBusyError):  # It is in the log of the process.
            self._write(entry)

    def note_attempt(
        self, client: str, attempt: ExecutionRequest, *, outcome: str, why: str
    ) -> None:
        """Write down an execution that was asked for and did not begin."""
        told = {"event": outcome, "client": client, "why": why}
        self._try_to_write({**told, **describe_attempt(attempt)})

    def note_stranger(self, peer: str, method: str, why: str) -> None:
        """Write down that somebody was not let in."""
        self._metrics.count_refusal("stranger")
        self._try_to_write({"event": "refused", "peer": peer, "method": method, "why": why})

    def note_unreadable(self, client: str, method: str) -> None:
        """Write down that a known client sent what is not a request."""
        self._metrics.count_refusal("unreadable")
        why = "not a request of this method"
        self._try_to_write({"event": "refused", "client": client, "method": method, "why": why})

    def note_refusal(self, client: str, why: str) -> None:
        """Count a request of a known client that went beyond its quota."""
        del client  # in the audit log; as a label it would let clients fill the memory
        self._metrics.count_refusal(why)

    def note_load(self, *, running: int, waiting: int) -> None:
        self._metrics.set_load(running=running, waiting=waiting)

    def note_sandboxes(self, change: int) -> None:
        self._metrics.change_sandboxes(change)

    def note_call(self, method: str, status: str, seconds: float) -> None:
        self._metrics.count_call(method, status, seconds)
