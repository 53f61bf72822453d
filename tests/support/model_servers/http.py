"""A small HTTP server that plays one behaviour to every request, byte by byte if need be."""

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import anyio
import anyio.abc

from assay.contracts.messages import Request, StopReason
from tests.conformance.model import (
    Answers,
    BadJson,
    Behaviour,
    CallsTools,
    CorruptStream,
    CutsOff,
    FailsMidway,
    LocksOut,
    NoResponse,
    Overflows,
    Says,
    TurnsAway,
)

ANSWER = Says(pieces=("Hell", "o", ", dear", " world."))
"""What a peer says that may say what it likes."""
_ANSWER_AS_JSON = ('{"answer": ', '"hello"', "}")

_HEAD_END = b"\r\n\r\n"
_MAX_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error, as one wire format writes it."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class Dialect(Protocol):
    """One wire format, as a server has to speak it."""

    def read_request(self, path: str, body: Mapping[str, Any]) -> Request:
        """Read a request back from the wire."""
        ...

    def write_piece(self, text: str) -> bytes:
        """Write one event with a piece of text."""
        ...

    def write_begin(self, behaviour: Says | CallsTools) -> bytes: ...

    def write_calls(self, behaviour: CallsTools) -> bytes: ...

    def write_end(self, behaviour: Says | CallsTools) -> bytes: ...

    def write_failure(self) -> bytes:
        """Write the event of an answer that cannot go on."""
        ...

    def write_refusal(self, behaviour: TurnsAway | Overflows | LocksOut, key: str) -> Refusal: ...


@dataclass(slots=True, kw_only=True)
class ModelServer:
    """A server that runs, and what it has seen."""

    url: str
    received: list[Request] = field(default_factory=list[Request])
    failures: list[Exception] = field(default_factory=list[Exception])
    """Requests that it could not read: faults of the model, or of the server."""
    _go_on: anyio.Event = field(default_factory=anyio.Event)
    _left: anyio.Event = field(default_factory=anyio.Event)

    def go_on(self) -> None:
        self._go_on.set()

    async def wait_to_go_on(self) -> None:
        await self._go_on.wait()

    async def wait_until_left(self) -> None:
        await self._left.wait()

    def note_left(self) -> None:
        self._left.set()


@asynccontextmanager
async def open_server(dialect: Dialect, behaviour: Behaviour) -> AsyncGenerator[ModelServer]:
    """Serve on a free port until the context is left."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - not Django's
    server = ModelServer(url=f"http://127.0.0.1:{port}")

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                await _Exchange(stream, server, dialect).play(behaviour)
            except (anyio.BrokenResourceError, anyio.EndOfStream):
                server.note_left()

    failed: list[Exception] = []
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        try:
            yield server
        except Exception as error:  # noqa: BLE001 - of whatever kind, it is raised below
            failed.append(error)
        tasks.cancel_scope.cancel()
    # Out here, so that it does not come as a group; what the server could not read comes first,
    # because the rest follows from it.
    for error in (*server.failures, *failed):
        raise error


class _Exchange:
    """One request and what is answered; a connection is used once."""

    def __init__(
        self, stream: anyio.abc.SocketStream, server: ModelServer, dialect: Dialect
    ) -> None:
        self._stream = stream
        self._server = server
        self._dialect = dialect
        self._splits = False

    async def play(self, behaviour: Behaviour) -> None:
        path, headers, body = await self._read()
        try:
            request = self._dialect.read_request(path, json.loads(body))
        except (KeyError, TypeError, ValueError, AssertionError) as error:
            self._server.failures.append(error)
            raise anyio.EndOfStream from error
        self._server.received.append(request)
        match behaviour:
            case TurnsAway() | Overflows() | LocksOut():
                key = _key_in(headers)
                await self._refuse(self._dialect.write_refusal(behaviour, key))
            case BadJson():
                await self._send_head(200, {"Content-Type": "text/html"})
                await self._send_chunk(b"<html><body>Please log in.</body></html>")
                await self._send_end()
            case _:
                await self._send_head(200, {"Content-Type": "text/event-stream"})
                await self._stream_reply(behaviour, request)

    async def _stream_reply(self, behaviour: Behaviour, request: Request) -> None:
        match behaviour:
            case Answers():
                await self._say(_obedient(request))
            case Says():
                await self._say(behaviour)
            case CallsTools():
                await self._call(behaviour)
            case FailsMidway(pieces=pieces):
                await self._say_part(pieces)
                await self._send_chunk(self._dialect.write_failure())
                await self._send_end()
            case CorruptStream(pieces=pieces):
                await self._say_part(pieces)
                await self._send_chunk(b'event: message_delta\ndata: {"choices": [{]\n\n')
                await self._send_end()
            case NoResponse(pieces=pieces):
                await self._say_part(pieces)
                await self._wait_until_left()
            case CutsOff(pieces=pieces, politely=politely):
                await self._say_part(pieces)
                if politely:
                    await self._send_end()
            case _:
                raise AssertionError(behaviour)

    async def _say(self, says: Says) -> None:
        self._splits = says.splits_bytes
        await self._send_chunk(self._dialect.write_begin(says))
        for place, piece in enumerate(says.pieces):
            if place == says.waits_after:
                await self._wait_for_a_word()
            await self._send_chunk(self._dialect.write_piece(piece))
        await self._send_chunk(self._dialect.write_end(says))
        await self._send_end()

    async def _say_part(self, pieces: Iterable[str]) -> None:
        if texts := tuple(pieces):
            await self._send_chunk(self._dialect.write_begin(Says(pieces=texts)))
            for text in texts:
                await self._send_chunk(self._dialect.write_piece(text))

    async def _call(self, behaviour: CallsTools) -> None:
        await self._send_chunk(self._dialect.write_begin(behaviour))
        if behaviour.text:
            await self._send_chunk(self._dialect.write_piece(behaviour.text))
        await self._send_chunk(self._dialect.write_calls(behaviour))
        await self._send_chunk(self._dialect.write_end(behaviour))
        await self._send_end()

    async def _wait_for_a_word(self) -> None:
        """Wait until the test says go on, or the other side leaves."""
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await self._wait_until_left()
                raise anyio.EndOfStream

            tasks.start_soon(watch)
            await self._server.wait_to_go_on()
            tasks.cancel_scope.cancel()

    async def _wait_until_left(self) -> None:
        try:
            while True:
                await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            self._server.note_left()

    async def _refuse(self, refusal: Refusal) -> None:
        await self._send_head(
            refusal.status, {"Content-Type": "application/json", **refusal.headers}
        )
        await self._send_chunk(json.dumps(refusal.body).encode())
        await self._send_end()

    async def _send_head(self, status: int, headers: Mapping[str, str]) -> None:
        fields = {**headers, "Transfer-Encoding": "chunked", "Connection": "close"}
        lines = [f"HTTP/1.1 {status} Played", *(f"{k}: {v}" for k, v in fields.items())]
        await self._stream.send("\r\n".join(lines).encode() + _HEAD_END)

    async def _send_chunk(self, data: bytes) -> None:
        for part in (bytes([byte]) for byte in data) if self._splits else [data]:
            if part:
                await self._stream.send(f"{len(part):x}\r\n".encode() + part + b"\r\n")

    async def _send_end(self) -> None:
        await self._stream.send(b"0\r\n\r\n")

    async def _read(self) -> tuple[str, dict[str, str], bytes]:
        received = bytearray()
        while _HEAD_END not in received:
            received += await self._stream.receive()
            assert len(received) <= _MAX_HEAD_BYTES or _HEAD_END in received
        head, _, rest = bytes(received).partition(_HEAD_END)
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body = bytearray(rest)
        while len(body) < int(headers.get("content-length", "0")):
            body += await self._stream.receive()
        return first.split(" ")[1], headers, bytes(body)


def _key_in(headers: Mapping[str, str]) -> str:
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    return bearer or headers.get("x-api-key", "") or headers.get("x-goog-api-key", "")


def _obedient(request: Request) -> Says:
    """Answer as a model does that keeps to what it was asked; a piece is a token here."""
    said = ANSWER if request.json_schema is None else replace(ANSWER, pieces=_ANSWER_AS_JSON)
    if stop := [place for place, piece in enumerate(said.pieces) if _has_any(piece, request.stop)]:
        said = replace(said, pieces=said.pieces[: stop[0]])
    if request.max_output_tokens is None or len(said.pieces) <= request.max_output_tokens:
        return said
    kept = said.pieces[: request.max_output_tokens]
    return replace(said, pieces=kept, stop_reason=StopReason.LENGTH)


def _has_any(piece: str, words: Iterable[str]) -> bool:
    return any(word in piece for word in words)


def to_event(data: Mapping[str, Any], *, name: str = "") -> bytes:
    """Write one server-sent event. Characters are not escaped, so that they have many bytes."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
