"""Answers for one request, given to an SDK without a socket: for what no server plays."""

import json
from collections.abc import Mapping
from typing import Any

import httpx2


class Played:
    """Gives the same answer to every request, and keeps what was asked."""

    def __init__(
        self,
        *events: Mapping[str, Any],
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._events = events
        self._status = status
        self._headers = dict(headers or {})
        self.asked: list[dict[str, Any]] = []
        self.headers: list[httpx2.Headers] = []

    def client(self) -> httpx2.AsyncClient:
        """Build the client to hand to an SDK."""
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self._answer))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(json.loads(request.content))
        self.headers.append(request.headers)
        body = b"".join(_event(event) for event in self._events)
        headers = {"Content-Type": "text/event-stream", **self._headers}
        return httpx2.Response(self._status, content=body, headers=headers)


def _event(event: Mapping[str, Any]) -> bytes:
    head = f"event: {event['type']}\n" if "type" in event else ""
    return f"{head}data: {json.dumps(event)}\n\n".encode()
