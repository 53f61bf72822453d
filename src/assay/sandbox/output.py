"""Bounded capture of one output stream: the beginning is kept, the rest is counted."""

from typing import Final

FLOOD_FACTOR: Final = 16
"""How many times its limit a stream may write before the execution is ended."""


class Capture:
    """What one stream has written so far."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept = bytearray()
        self.dropped_bytes = 0

    def add(self, data: bytes) -> None:
        room = self._limit_bytes - len(self._kept)
        self._kept += data[:room]
        self.dropped_bytes += max(0, len(data) - room)

    @property
    def kept(self) -> bytes:
        return bytes(self._kept)

    @property
    def overflowed(self) -> bool:
        return self.dropped_bytes > 0

    @property
    def flooded(self) -> bool:
        return self.dropped_bytes > FLOOD_FACTOR * self._limit_bytes
