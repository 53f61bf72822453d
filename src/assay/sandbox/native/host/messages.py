"""Messages of the supervisor to and from the processes in and around a jail.

`Channel` carries requests, answers and descriptors over a socket that preserves message boundaries,
to a zygote or to the mounts process. `Orders` queues requests to a kernel manager, without waiting.
`decode_answers` reads the rich output of a cell, which is untrusted.
"""

import errno
import json
import os
import re
import select
import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import anyio

from assay.contracts.execution import CellError, RichOutput
from assay.sandbox.native.guest import messages
from assay.sandbox.native.guest.display import (
    HEADER_LENGTH,
    LARGEST_CELL,
    LARGEST_FORM,
    LARGEST_TEXT,
    MOST_SHOWN,
)
from assay.sandbox.native.host.jail import Descriptor, close_all

Answer = tuple[dict[str, Any], list[int]]

_LARGEST_ANSWER: Final = 4096
_MOST_DESCRIPTORS: Final = 64
_ANSWER_WITHIN_S: Final = 30.0


class ChannelClosedError(Exception):
    """The other side is gone, or violates the protocol."""


class RefusedError(Exception):
    """The other side is alive and returned an error."""


class Channel:
    """The supervisor's end of the connection to a zygote or to the mounts process."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._end = end
        self._turn = anyio.Lock()
        self._broken = False

    async def ask(self, question: Mapping[str, object], descriptors: Sequence[int] = ()) -> Answer:
        """Send one request and wait for its answer; cancellation waits for the answer too.

        Raises:
            ChannelClosedError: If no answer can arrive, now or later.
            RefusedError: If the answer is an error.
        """
        async with self._turn:
            # The next request would take an unread answer for its own.
            with anyio.CancelScope(shield=True):
                self._must_be_open()
                await self._send(json.dumps(question).encode(), descriptors)
                return await self.hear()
        raise AssertionError("a shielded scope that is not handed out cannot be cancelled")

    async def tell(self, message: Mapping[str, object]) -> None:
        """Send a message that has no answer. Delivery is not confirmed.

        Raises:
            ChannelClosedError: If the channel is closed.
        """
        async with self._turn:
            self._must_be_open()
            await self._send(json.dumps(message).encode(), ())

    def hung_up(self) -> bool:
        """Whether the other side is known to be gone."""
        if self._broken:
            return True
        events = select.poll()
        events.register(self._end, 0)
        return bool(events.poll(0))

    async def hear(self, *, within_s: float = _ANSWER_WITHIN_S) -> Answer:
        """Wait for one message; raises like `ask`."""
        self._must_be_open()
        try:
            with anyio.fail_after(within_s):
                await anyio.wait_readable(self._end)
            message, received, whole = messages.receive_part(
                self._end, _LARGEST_ANSWER, _MOST_DESCRIPTORS
            )
        except (OSError, TimeoutError, anyio.ClosedResourceError) as error:
            self._broken = True
            raise ChannelClosedError(str(error)) from error
        if not whole:
            # The kernel drops descriptors that exceed this process's limit.
            close_all(received)
            raise RefusedError(os.strerror(errno.EMFILE))
        try:
            answer = json.loads(message)
            refused = answer.get("error")
        except (ValueError, AttributeError, RecursionError) as error:
            self._broken = True
            close_all(received)
            raise ChannelClosedError("the other side is gone") from error
        if refused is not None:
            close_all(received)
            raise RefusedError(str(refused))
        return answer, received

    def _must_be_open(self) -> None:
        if self._broken:
            raise ChannelClosedError("the other side is gone")

    async def _send(self, message: bytes, descriptors: Sequence[int]) -> None:
        while True:
            try:
                socket.send_fds(self._end, [message], list(descriptors))
            except BlockingIOError:
                await anyio.wait_writable(self._end)
            except OSError as error:
                self._broken = True
                raise ChannelClosedError(str(error)) from error
            else:
                return

    def close(self) -> None:
        self._broken = True
        # Wakes the task that waits for an answer: there will be none.
        anyio.notify_closing(self._end)
        self._end.close()


class Orders:
    """The send queue to one kernel manager. If the kernel manager is gone, requests are dropped."""

    def __init__(self, go: Descriptor) -> None:
        self._end = socket.socket(fileno=os.dup(go.number))
        self._end.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._waiting: deque[tuple[memoryview, list[int]]] = deque()

    @property
    def pending(self) -> bool:
        return bool(self._waiting)

    def put(self, order: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send as much as fits now; `send_more` sends the rest.

        Descriptors are copied, so that the caller may close them, and their numbers may be reused,
        while the request still waits.

        Raises:
            OSError: If there are too few descriptors for the copies.
        """
        self._waiting.append((memoryview(messages.encode(order)), _copies(descriptors)))
        self.send_more()

    def send_more(self) -> None:
        """Send the rest, as far as it fits."""
        while self._waiting:
            data, copies = self._waiting[0]
            try:
                sent = socket.send_fds(self._end, [data], copies)
            except BlockingIOError:
                return
            except OSError:
                self._forget()
                return
            self._waiting.popleft()
            # Descriptors travel with the first byte.
            close_all(copies)
            if sent < len(data):
                self._waiting.appendleft((data[sent:], []))

    def _forget(self) -> None:
        for _, copies in self._waiting:
            close_all(copies)
        self._waiting.clear()

    def close(self) -> None:
        self._forget()
        self._end.close()


def _copies(descriptors: Sequence[int]) -> list[int]:
    copies: list[int] = []
    try:
        for descriptor in descriptors:
            copies.append(os.dup(descriptor))  # noqa: PERF401 - closed if one of them fails
    except OSError:
        close_all(copies)
        raise
    return copies


_LARGEST_HEADER: Final = 1 << 20
_BYTES_PER_CHARACTER: Final = 4
_MOST_FORMS: Final = 32
_MOST_LINES: Final = 500
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}/[a-z0-9][a-zA-Z0-9.+;= -]{0,80}")
MOST_BYTES: Final = (
    LARGEST_CELL + LARGEST_TEXT * _BYTES_PER_CHARACTER * MOST_SHOWN + _LARGEST_HEADER * 4
)
"""More than an honest cell ever sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The result of a cell apart from its streams."""

    outputs: tuple[RichOutput, ...] = ()
    error: CellError | None = None
    complaint: str = ""
    """Why decoding stopped; empty if everything was decoded."""


class _Unreadable(Exception):  # noqa: N818 - stops the decoding and never leaves this module
    pass


def decode_answers(data: bytes) -> Answers:
    """Decode frames up to the first invalid one."""
    outputs: list[RichOutput] = []
    error: CellError | None = None
    complaint = ""
    try:
        for header, rest in _frames(data):
            if header.get("kind") == "error":
                error = _error(header)
            else:
                outputs.append(_output(header, rest))
    except _Unreadable as reason:
        complaint = str(reason)
    return Answers(outputs=tuple(outputs), error=error, complaint=complaint)


def _frames(data: bytes) -> Iterator[tuple[dict[str, Any], memoryview]]:
    """Yield each header with the bytes of its forms."""
    rest = memoryview(data)
    # Two more frames: the exception, and the note about omitted output.
    for _ in range(MOST_SHOWN + 2):
        if not rest:
            return
        header, rest = _header(rest)
        size = sum(size for _, size in _sizes(header))
        if size > len(rest):
            raise _Unreadable("a frame that is cut off")
        yield header, rest[:size]
        rest = rest[size:]
    if rest:
        raise _Unreadable("more than a cell may show")


def _header(rest: memoryview) -> tuple[dict[str, Any], memoryview]:
    if len(rest) < HEADER_LENGTH.size:
        raise _Unreadable("a frame that is cut off")
    (length,) = HEADER_LENGTH.unpack_from(rest)
    rest = rest[HEADER_LENGTH.size :]
    if length > min(_LARGEST_HEADER, len(rest)):
        raise _Unreadable("a frame of impossible length")
    try:
        header = json.loads(bytes(rest[:length]))
    except (ValueError, RecursionError) as error:
        raise _Unreadable("a header that is no JSON") from error
    if not isinstance(header, dict):
        raise _Unreadable("a header that is no object")
    return cast("dict[str, Any]", header), rest[length:]


def _sizes(header: dict[str, Any]) -> list[tuple[str, int]]:
    forms = _list_of(header, "forms", most=_MOST_FORMS)
    sizes: list[tuple[str, int]] = []
    for form in forms:
        match form:
            case [str(name), int(size)] if 0 <= size <= LARGEST_FORM:
                sizes.append((_media_type(name), int(size)))
            case _:
                raise _Unreadable("a form of impossible size")
    return sizes


def _output(header: dict[str, Any], data: memoryview) -> RichOutput:
    forms: dict[str, bytes] = {}
    for name, size in _sizes(header):
        forms[name], data = bytes(data[:size]), data[size:]
    dropped = _list_of(header, "dropped", most=_MOST_FORMS)
    if (kind := header.get("kind")) not in ("value", "display"):
        raise _Unreadable("a frame of unknown kind")
    return RichOutput(
        kind=kind,
        forms=forms,
        dropped=tuple(_media_type(name) for name in dropped),
    )


def _error(header: dict[str, Any]) -> CellError:
    name, message = header.get("name"), header.get("message")
    lines = _list_of(header, "traceback", most=_MOST_LINES)
    if not (isinstance(name, str) and isinstance(message, str)):
        raise _Unreadable("an exception without a name")
    return CellError(name=name, message=message, traceback=tuple(str(line) for line in lines))


def _list_of(header: dict[str, Any], name: str, *, most: int) -> list[Any]:
    found = header.get(name, [])
    if not isinstance(found, list) or len(cast("list[Any]", found)) > most:
        raise _Unreadable(f"no list of {name}")
    return cast("list[Any]", found)


def _media_type(name: object) -> str:
    if not isinstance(name, str) or not _MEDIA_TYPE.fullmatch(name):
        raise _Unreadable("what is no media type")
    return name
