"""OpenTelemetry traces of calls, if an endpoint is configured."""

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

from assay.contracts.errors import MissingExtraError
from assay.sandbox.rpc.messages.statuses import SERVICE

_EXPORT_S: Final = 3.0
"""Maximum delay of the shutdown by an unreachable collector, including all retries."""

NoteStatus = Callable[[str], None]
"""Callback for the name of the call's status."""


class Tracing(Protocol):
    """Records a span around a call."""

    def span(
        self, method: str, metadata: Iterable[tuple[str, str | bytes]]
    ) -> AbstractContextManager[NoteStatus]: ...


class NoTracing:
    """Records nothing."""

    def span(
        self, method: str, metadata: Iterable[tuple[str, str | bytes]]
    ) -> AbstractContextManager[NoteStatus]:
        del method, metadata
        return nullcontext(_ignore)


def _ignore(_: str) -> None:
    pass


@contextmanager
def open_tracing(endpoint: str | None) -> Generator[Tracing]:
    """Export spans to an endpoint over OTLP; flush the rest before this ends.

    Raises:
        MissingExtraError: If the library for it is not installed.
    """
    if endpoint is None:
        yield NoTracing()
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingExtraError("traces of an executor", extra="executor") from error
    provider = TracerProvider(
        resource=Resource.create({"service.name": "assay-executor"}), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield _OpenTelemetry(provider)
    finally:
        provider.shutdown()


class _OpenTelemetry:
    def __init__(self, provider: Any) -> None:
        self._tracer = provider.get_tracer("assay.executor")

    @contextmanager
    def span(
        self, method: str, metadata: Iterable[tuple[str, str | bytes]]
    ) -> Generator[NoteStatus]:
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import (
            TraceContextTextMapPropagator,
        )

        carrier = {name: value for name, value in metadata if isinstance(value, str)}
        parent = TraceContextTextMapPropagator().extract(carrier)
        about = {"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": method}
        # Not set as the current span: another context may resume the generator.
        span = self._tracer.start_span(
            f"{SERVICE}/{method}", context=parent, kind=SpanKind.SERVER, attributes=about
        )

        def note(status: str) -> None:
            span.set_attribute("rpc.grpc.status", status)
            if status != "OK":
                span.set_status(StatusCode.ERROR, status)

        try:
            yield note
        finally:
            span.end()
