"""A web server with one file, which can be told to misbehave."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from threading import Thread


@dataclass(kw_only=True)
class FileServer:
    """What is served, and what was asked."""

    content: bytes
    url: str = ""
    cut_after: int | None = None
    """How many bytes of each answer are sent before the line breaks."""
    ranges: bool = True
    status: int | None = None
    """Answer with this and nothing else."""
    redirect_to: str = ""
    """Send everybody there."""
    starts: list[int] = field(default_factory=list[int])
    """Where each request wanted to begin."""


@contextmanager
def serve_file(content: bytes, *, tls: SSLContext | None = None) -> Generator[FileServer]:
    """Serve some bytes on a port of this machine, by HTTPS if there is something to do it with."""
    served = FileServer(content=content)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, served)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "https" if tls else "http"
    served.url = f"{scheme}://127.0.0.1:{server.server_port}/weights"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer(handler: BaseHTTPRequestHandler, served: FileServer) -> None:
    wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    start = int(wanted[1]) if wanted else 0
    served.starts.append(start)
    if served.redirect_to:
        handler.send_response(302)
        handler.send_header("Location", served.redirect_to)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    if served.status is not None:
        handler.send_error(served.status)
        return
    size = len(served.content)
    if wanted and served.ranges:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
    else:
        start = 0
        handler.send_response(200)
    handler.send_header("Content-Length", str(size - start))
    handler.end_headers()
    end = size if served.cut_after is None else min(size, start + served.cut_after)
    handler.wfile.write(served.content[start:end])
    handler.close_connection = True
