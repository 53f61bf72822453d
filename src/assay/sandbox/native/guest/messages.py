"""Messages between an interpreter's keeper, its heads and the supervisor: a length, then JSON.

Over a stream socket, which carries descriptors too. What comes from a head is not believed: it is
read bit by bit, up to a size, and whatever is no message ends the talk.
"""

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

Message = dict[str, Any]

_LENGTH: Final = struct.Struct("!I")
_MOST_DESCRIPTORS: Final = 8
_CHUNK: Final = 1 << 16


class TalkError(Exception):
    """The other side is gone, or says what is no message."""


def encode(message: Mapping[str, object]) -> bytes:
    # ASCII only, so that text with lone surrogates arrives as it is.
    text = json.dumps(message).encode()
    return _LENGTH.pack(len(text)) + text


def send(
    end: socket.socket, message: Mapping[str, object], descriptors: Sequence[int] = ()
) -> None:
    """Send one message, however long that takes."""
    data = encode(message)
    sent = socket.send_fds(end, [data], list(descriptors)) if descriptors else 0
    end.sendall(data[sent:])


def receive(end: socket.socket) -> tuple[Message, list[int]]:
    """Wait for one message of somebody who is trusted to finish it.

    Raises:
        TalkError: If there will be none.
    """
    start, descriptors, _, _ = socket.recv_fds(
        end, _LENGTH.size, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
    )
    start += _receive_exactly(end, _LENGTH.size - len(start)) if start else b""
    if not start:
        raise TalkError("the other side is gone")
    (length,) = _LENGTH.unpack(start)
    return json.loads(_receive_exactly(end, length)), descriptors


def _receive_exactly(end: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        piece = end.recv(min(_CHUNK, length - len(received)))
        if not piece:
            raise TalkError("the other side broke off")
        received += piece
    return bytes(received)


class Listener:
    """Collects messages of somebody who is not trusted, without ever waiting for one."""

    def __init__(self, end: socket.socket, *, largest: int) -> None:
        self._end = end
        self._largest = largest
        self._heard = b""

    def hear(self) -> list[Message]:
        """Return the messages that are complete by now; for when there is something to be read.

        Raises:
            TalkError: If there is an end, or what is no message.
        """
        try:
            piece = self._end.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError as error:
            raise TalkError(str(error)) from error
        if not piece:
            raise TalkError("the other side is gone")
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
            raise TalkError("a message that is too long")
        end = _LENGTH.size + length
        if len(self._heard) < end:
            return None
        text, self._heard = self._heard[_LENGTH.size : end], self._heard[end:]
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TalkError("what is no message") from error
        if not isinstance(message, dict):
            raise TalkError("what is no message")
        return cast("Message", message)
