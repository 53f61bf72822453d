"""A server that lists models and answers every conversation alike, for choosing among servers."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any


@dataclass(kw_only=True)
class ChatEndpoint:
    """What is served, and what was asked."""

    models: tuple[str, ...] = ()
    text: str = "ready"
    listing: bytes | None = None
    """Sent in place of a list of models."""
    documents: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """By path, outside of `/v1`; other paths there do not exist."""
    statuses: list[int] = field(default_factory=list[int])
    """What the next conversations are refused with."""
    retry_after: str = "0"
    silent: bool = False
    """Take connections, and answer nothing before the end."""
    base_url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    keys: list[str] = field(default_factory=list[str])
    """Of every request, what it gave as its key."""
    ended: Event = field(default_factory=Event)


@contextmanager
def serve_chat(*models: str, **more: Any) -> Generator[ChatEndpoint]:
    """Serve on a port of this machine."""
    endpoint = ChatEndpoint(models=models, **more)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not _send_document(self, endpoint):
                _list_models(self, endpoint)

        def do_POST(self) -> None:
            if not _send_document(self, endpoint):
                _chat(self, endpoint)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.base_url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _send_document(handler: BaseHTTPRequestHandler, endpoint: ChatEndpoint) -> bool:
    if handler.path.startswith("/v1"):
        return False
    handler.rfile.read(int(handler.headers.get("Content-Length", "0")))
    document = endpoint.documents.get(handler.path)
    _send(handler, 200 if document else 404, document or b"{}")
    return True


def _list_models(handler: BaseHTTPRequestHandler, endpoint: ChatEndpoint) -> None:
    _note(handler, endpoint)
    if endpoint.silent:
        endpoint.ended.wait(60)
        return
    listed = {"object": "list", "data": [{"id": name} for name in endpoint.models]}
    _send(handler, 200, endpoint.listing or json.dumps(listed).encode())


def _chat(handler: BaseHTTPRequestHandler, endpoint: ChatEndpoint) -> None:
    _note(handler, endpoint)
    endpoint.asked.append(json.loads(handler.rfile.read(int(handler.headers["Content-Length"]))))
    if endpoint.statuses:
        key = endpoint.keys[-1]
        refusal = {"error": {"message": f"not now, {key}", "type": "x"}}
        _send(handler, endpoint.statuses.pop(0), json.dumps(refusal).encode(), endpoint.retry_after)
        return
    frame = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "served"}
    said = {"index": 0, "delta": {"content": endpoint.text}, "finish_reason": None}
    ended: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22}
    chunks: tuple[dict[str, Any], ...] = (
        {"choices": [said]},
        {"choices": [ended]},
        {"choices": [], "usage": usage},
    )
    events = "".join(f"data: {json.dumps({**frame, **chunk})}\n\n" for chunk in chunks)
    _send(handler, 200, f"{events}data: [DONE]\n\n".encode(), kind="text/event-stream")


def _note(handler: BaseHTTPRequestHandler, endpoint: ChatEndpoint) -> None:
    endpoint.keys.append(handler.headers.get("Authorization", "").removeprefix("Bearer "))


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    retry_after: str = "",
    *,
    kind: str = "application/json",
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    if retry_after and status != 200:
        handler.send_header("Retry-After", retry_after)
    handler.end_headers()
    handler.wfile.write(body)
