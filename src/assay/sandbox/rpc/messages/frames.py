"""Frames on a byte stream: encoding, splitting and checks."""

import struct
from collections.abc import Generator
from typing import Final

from google.protobuf.message import DecodeError

from assay.sandbox.rpc.messages import relay_pb2 as pb
from assay.sandbox.rpc.messages.codec import CHUNK_BYTES
from assay.sandbox.rpc.messages.primitives import MessageError

VERSION: Final = 1
MAX_FRAME_BYTES: Final = CHUNK_BYTES + 16_384
"""The largest piece of content with its envelope; also fits an error with a long message."""
WINDOW_FRAMES: Final = 32
"""How many content frames may be in transit in one direction of a call."""

_LENGTH: Final = struct.Struct("!I")


def encode(frame: pb.Frame) -> bytes:
    """Return the bytes of a frame on the stream."""
    body = frame.SerializeToString()
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Splits a byte stream into frames. Buffers at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Generator[pb.Frame]:
        """Yield the frames that are now complete.

        Raises:
            MessageError: If the bytes are not a frame, or the frame is too large.
        """
        self._buffer += data
        begin = 0
        try:
            while len(self._buffer) - begin >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._buffer, begin)
                if size > MAX_FRAME_BYTES:
                    raise MessageError(f"a frame of {size} bytes")
                end = begin + _LENGTH.size + size
                if len(self._buffer) < end:
                    return
                body = bytes(self._buffer[begin + _LENGTH.size : end])
                begin = end
                yield _decode(body)
        finally:
            del self._buffer[:begin]


def _decode(body: bytes) -> pb.Frame:
    try:
        frame = pb.Frame.FromString(body)
    except DecodeError as error:
        raise MessageError("not a frame") from error
    if frame.WhichOneof("body") is None:
        raise MessageError("an empty frame")
    return frame
