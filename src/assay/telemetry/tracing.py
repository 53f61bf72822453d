"""OpenTelemetry: exports spans over OTLP, and continues the traces of callers."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from assay.contracts.errors import require

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer


@contextmanager
def open_tracer(
    endpoint: str | None, service: str, *, extra: str, timeout_s: float | None = None
) -> Generator["Tracer | None"]:
    """Export the spans of a service to an endpoint; flush the rest before this ends.

    Yields None without an endpoint. The timeout caps the delay by an unreachable collector.

    Raises:
        MissingExtraError: If the library for it is not installed.
    """
    if endpoint is None:
        yield None
        return
    with require("exporting traces", extra=extra):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    provider = TracerProvider(
        resource=Resource.create({"service.name": service}), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield provider.get_tracer(service.replace("-", "."))
    finally:
        provider.shutdown()


def parent_context(headers: Mapping[str, str]) -> "Context":
    """Return the context of the caller's trace, from the header `traceparent`."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(headers)
