"""Prometheus metrics of an executor, in their own registry."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from assay.contracts.errors import MissingExtraError, UsageError

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
except ImportError as error:
    raise MissingExtraError("metrics of an executor", extra="executor") from error

_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Metrics of an executor. Labels have few values, regardless of what clients do."""

    def __init__(self) -> None:
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
        self._refusals = Counter(
            "assay_refusals", "Requests that were not let in.", ["why"], registry=self.registry
        )
        self._running = Gauge(
            "assay_executions_running", "Executions that run now.", registry=self.registry
        )
        self._waiting = Gauge(
            "assay_executions_waiting", "Executions in the queue.", registry=self.registry
        )
        self._sandboxes = Gauge(
            "assay_sandboxes_open", "Sandboxes that are open.", registry=self.registry
        )
        self._calls = Histogram(
            "assay_call_seconds",
            "Calls by method and status.",
            ["method", "status"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )

    def count_execution(self, outcome: str, seconds: float) -> None:
        self._executions.labels(outcome).inc()
        self._seconds.observe(seconds)

    def count_refusal(self, why: str) -> None:
        self._refusals.labels(why).inc()

    def set_load(self, *, running: int, waiting: int) -> None:
        self._running.set(running)
        self._waiting.set(waiting)

    def change_sandboxes(self, change: int) -> None:
        self._sandboxes.inc(change)

    def count_call(self, method: str, status: str, seconds: float) -> None:
        self._calls.labels(method, status).observe(seconds)

    @contextmanager
    def served(self, host: str, port: int) -> Generator[int]:
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
