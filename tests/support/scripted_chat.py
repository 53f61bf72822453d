"""A server of chat completions that replies by a script, whole and not in pieces."""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Turn = str | tuple[str, dict[str, Any]]
"""Something to say, or a tool to call with its arguments."""


@dataclass(kw_only=True)
class ScriptedChat:
    """What is to be said, and what was asked."""

    turns: list[Turn]
    base_url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def answers_of_tools(self) -> list[str]:
        """Every answer of a tool that the model has seen, in order."""
        last = self.asked[-1]["messages"]
        return [str(message["content"]) for message in last if message["role"] == "tool"]


@contextmanager
def serve_script(turns: Sequence[Turn]) -> Generator[ScriptedChat]:
    """Serve on a port of this machine."""
    script = ScriptedChat(turns=list(turns))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            script.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps(_completion(script.turns.pop(0), len(script.asked))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.base_url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _completion(turn: Turn, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if isinstance(turn, str):
        message["content"] = turn
    else:
        function = {"name": turn[0], "arguments": json.dumps(turn[1])}
        message["tool_calls"] = [{"id": f"call-{number}", "type": "function", "function": function}]
    reason = "stop" if isinstance(turn, str) else "tool_calls"
    return {
        "id": str(number),
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
