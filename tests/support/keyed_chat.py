"""A server of chat completions that answers in pieces, by the keyword that a person has used.

Several conversations and runs can be asked at once, in any order: each keyword has replies of its
own, given one after the other; the last one is repeated. The empty one stands for any other.
"""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

_PIECE = 24
_MOST_PIECES = 500
_TIMEOUT_S = 60.0
HOLD = "\x00"
"""In a reply: from here on it waits for `KeyedChat.go_on`."""


@dataclass(kw_only=True)
class KeyedChat:
    """What is to be said, and how often it was asked."""

    replies: Mapping[str, Sequence[str]]
    base_url: str = ""
    asked: dict[str, int] = field(default_factory=dict[str, int])
    go_on: Event = field(default_factory=Event)
    """Replies that hold wait for this."""
    ended: Event = field(default_factory=Event)
    heard: list[list[dict[str, Any]]] = field(default_factory=list[list[dict[str, Any]]])
    """The messages of each request."""
    keys: list[str] = field(default_factory=list[str])
    """The key that each request came with."""
    lock: Lock = field(default_factory=Lock)

    def next_reply(self, messages: list[dict[str, Any]]) -> str:
        """Return what is to be said next under the keyword that was used last."""
        text = "\n".join(_text_of(message) for message in messages if message["role"] == "user")
        key = max(self.replies, key=lambda word: text.rfind(word) if word else -0.5)
        with self.lock:
            self.heard.append(messages)
            number = self.asked.get(key, 0)
            self.asked[key] = number + 1
        replies = self.replies[key]
        return replies[min(number, len(replies) - 1)]


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@contextmanager
def serve_keyed(replies: Mapping[str, Sequence[str]]) -> Generator[KeyedChat]:
    """Serve on a port of this machine."""
    chat = KeyedChat(replies=replies)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _send(self, "application/json", [b'{"object":"list","data":[{"id":"keyed"}]}'])

        def do_POST(self) -> None:
            chat.keys.append(self.headers.get("Authorization", "").removeprefix("Bearer "))
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            _send(self, "text/event-stream", _frames(chat, chat.next_reply(asked["messages"])))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    chat.base_url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield chat
    finally:
        chat.ended.set()
        chat.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _frames(chat: KeyedChat, reply: str) -> Iterator[bytes]:
    frame = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "keyed"}

    def event(**fields: Any) -> bytes:
        return f"data: {json.dumps({**frame, **fields})}\n\n".encode()

    for number, part in enumerate(reply.split(HOLD)):
        if number:
            chat.go_on.wait(_TIMEOUT_S)
        size = max(_PIECE, len(part) // _MOST_PIECES)
        for start in range(0, len(part), size):
            delta = {"content": part[start : start + size]}
            yield event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])
    yield event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    usage = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}
    yield event(choices=[], usage=usage)
    yield b"data: [DONE]\n\n"


def _send(
    handler: BaseHTTPRequestHandler, kind: str, pieces: Sequence[bytes] | Iterator[bytes]
) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", kind)
    handler.send_header("Connection", "close")
    handler.end_headers()
    try:
        for piece in pieces:
            handler.wfile.write(piece)
            handler.wfile.flush()
    except OSError:
        # Whoever asked has gone, as a server that is killed does.
        return
