"""Limits how often the output of a program is read.

A program that writes single bytes fills a pipe faster than Assay reads it, unless each write wakes
the reader. On a busy machine it does, and each byte costs a read, a message and a frame.
"""

from typing import Final

READ_EVERY_S: Final = 0.004
"""The mean time between two small reads of one stream."""
READS_AHEAD: Final = 16
"""The number of small reads in a row without a pause, as after a time without output."""
LARGE_BYTES: Final = 4096
"""The size from which a read needs no pause."""


class Pace:
    """The rate limit for small reads of one stream."""

    def __init__(self) -> None:
        self._ahead = float(READS_AHEAD)
        self._last = 0.0

    def pause_s(self, size: int, now: float) -> float:
        """Return how long to pause a stream after a read of `size` bytes."""
        if size >= LARGE_BYTES:
            return 0.0
        earned = (now - self._last) / READ_EVERY_S
        self._ahead = min(float(READS_AHEAD), self._ahead + earned) - 1
        self._last = now
        return max(0.0, -self._ahead * READ_EVERY_S)
