"""Bounded capture of one output stream: keeps the beginning and counts the rest."""

from typing import Final

FLOOD_FACTOR: Final = 16
"""The multiple of its limit that a stream may write before the execution is killed."""


class Capture:
    """The output of one stream so far."""

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
