"""An engine that answers as it is told: for what a real one does only when it is ill."""

import json
import re
import socketserver
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any

Answer = tuple[int, Any]

_WELL: dict[str, Answer] = {
    r"GET /version": (200, {"ApiVersion": "1.41", "MinAPIVersion": "1.12", "Version": "20.10"}),
    r"GET /info": (
        200,
        {"ServerVersion": "20.10", "NCPU": 2, "MemTotal": 1 << 30, "Runtimes": {"runc": {}}},
    ),
    r"GET /containers/json": (200, []),
    r"GET /images/.*": (200, {"Id": "sha256:" + "0" * 64}),
    r"POST /images/prune": (200, {}),
}


@dataclass(kw_only=True)
class FakeDocker:
    """Where it listens, what it says, and what it was asked."""

    socket: str
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    """By method and path, as a pattern; a list is sent line by line."""
    asked: list[str] = field(default_factory=list[str])

    def answer(self, question: str) -> Answer:
        for pattern, answer in (*self.answers.items(), *_WELL.items()):
            if re.fullmatch(pattern, question):
                return answer
        return 404, {"message": f"no such thing: {question}"}


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


@contextmanager
def a_fake_docker(folder: Path, **answers: Answer) -> Generator[FakeDocker]:
    """Serve a fake engine on a socket in a folder."""
    fake = FakeDocker(socket=str(folder / "docker.sock"), answers=dict(answers))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            path = re.sub(r"^/v[\d.]+", "", self.path.partition("?")[0])
            question = f"{self.command} {path}"
            fake.asked.append(question)
            _read_body(self)
            status, content = fake.answer(question)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if question == "POST /build":
                self._send_lines(content)
            else:
                body = json.dumps(content).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def _send_lines(self, lines: list[Any]) -> None:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in (*(f"{json.dumps(line)}\n".encode() for line in lines), b""):
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - the library's names

        def address_string(self) -> str:
            return "somebody"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            del format, args

    server = _Server(fake.socket, Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _read_body(handler: BaseHTTPRequestHandler) -> None:
    if handler.headers.get("Transfer-Encoding") == "chunked":
        while size := int(handler.rfile.readline(), 16):
            handler.rfile.read(size + 2)
        handler.rfile.readline()
    else:
        handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
