"""A collector of traces: takes OTLP over HTTP, and keeps every span it is sent."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True, kw_only=True)
class Collector:
    """What has arrived."""

    endpoint: str
    spans: list[Span] = field(default_factory=list[Span])
    services: set[str] = field(default_factory=set[str])

    def take(self, body: bytes) -> None:
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for attribute in of_resource.resource.attributes:
                if attribute.key == "service.name":
                    self.services.add(attribute.value.string_value)
            for of_scope in of_resource.scope_spans:
                self.spans.extend(of_scope.spans)


def attributes_of(span: Span) -> dict[str, str]:
    """What a span says of itself in words."""
    return {attribute.key: attribute.value.string_value for attribute in span.attributes}


@contextmanager
def open_collector() -> Generator[Collector]:
    """Collect on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if (self.path, self.headers["Content-Type"]) != (
                "/v1/traces",
                "application/x-protobuf",
            ):
                self.send_error(404)
                return
            collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(endpoint=f"http://127.0.0.1:{server.server_port}/v1/traces")
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield collector
    finally:
        server.shutdown()
        serving.join(10)
        server.server_close()
