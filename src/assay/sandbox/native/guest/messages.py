"""Messages between the kernel manager, its Python kernels and the supervisor: length, then JSON.

They use a stream socket, which also carries descriptors. Messages from a Python kernel are
untrusted: they are read in pieces, up to a size, and an invalid message closes the connection.
"""

import array
import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

Message = dict[str, Any]

_LENGTH: Final = struct.Struct("!I")
_MOST_DESCRIPTORS: Final = 8
_CHUNK: Final = 1 << 16
LARGEST_UNTRUSTED: Final = 4096
"""The largest message from a Python kernel or a cell."""


class ConnectionLostError(Exception):
    """The other side is gone, or sent an invalid message."""


def encode(message: Mapping[str, object]) -> bytes:
    # ASCII only, so that text with lone surrogates arrives unchanged.
    text = json.dumps(message).encode()
    return _LENGTH.pack(len(text)) + text


def send(
    end: socket.socket, message: Mapping[str, object], descriptors: Sequence[int] = ()
) -> None:
    """Send one message and block until it is sent."""
    data = encode(message)
    sent = socket.send_fds(end, [data], list(descriptors)) if descriptors else 0
    end.sendall(data[sent:])


def receive(end: socket.socket) -> tuple[Message, list[int]]:
    """Wait for one message from a trusted sender, which is expected to complete it.

    Raises:
        ConnectionLostError: If the connection closes first.
    """
    start, descriptors, _ = receive_part(end, _LENGTH.size, _MOST_DESCRIPTORS)
    start += _receive_exactly(end, _LENGTH.size - len(start)) if start else b""
    if not start:
        raise ConnectionLostError("the other side is gone")
    (length,) = _LENGTH.unpack(start)
    return json.loads(_receive_exactly(end, length)), descriptors


def receive_part(end: socket.socket, size: int, most: int) -> tuple[bytes, list[int], bool]:
    """Receive like `socket.recv_fds`, but with descriptors that programs do not inherit.

    The last item tells whether all descriptors that were sent have arrived.
    """
    space = socket.CMSG_LEN(most * array.array("i").itemsize)
    message, notes, flags, _ = end.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    received = array.array("i")
    for level, kind, data in notes:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return message, list(received), not flags & socket.MSG_CTRUNC


def _receive_exactly(end: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        piece = end.recv(min(_CHUNK, length - len(received)))
        if not piece:
            raise ConnectionLostError("the other side broke off")
        received += piece
    return bytes(received)


class Listener:
    """Collects messages from an untrusted sender without blocking."""

    def __init__(self, end: socket.socket, *, largest: int = LARGEST_UNTRUSTED) -> None:
        self.end = end
        self._largest = largest
        self._heard = b""

    def hear(self) -> list[Message]:
        """Return the messages that are complete by now; call it when the socket is readable.

        Raises:
            ConnectionLostError: If the other side is gone or sent an invalid message.
        """
        try:
            piece = self.end.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ConnectionLostError(str(error)) from error
        if not piece:
            raise ConnectionLostError("the other side is gone")
        self._heard += piece
        messages: list[Message] = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
        if len(self._heard) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._heard)
        if length > self._largest:
            raise ConnectionLostError("a message that is too long")
        end = _LENGTH.size + length
        if len(self._heard) < end:
            return None
        text, self._heard = self._heard[_LENGTH.size : end], self._heard[end:]
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConnectionLostError("what is no message") from error
        if not isinstance(message, dict):
            raise ConnectionLostError("what is no message")
        return cast("Message", message)
