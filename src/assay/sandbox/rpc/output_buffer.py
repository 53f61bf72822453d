"""Buffer of a program's output, so that slow or reconnecting readers can catch up.

The buffer holds every byte that a result keeps of a stream, and the last megabyte beyond.
"""

from typing import Final

from assay.sandbox.rpc.messages.codec import CHUNK_BYTES

TAIL_BYTES: Final = 1 << 20


class Spool:
    """One output stream of one execution."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        room = self._limit_bytes - len(self._kept)
        self._kept += data[:room]
        self._tail += data[room:] if room > 0 else data
        self._total += len(data)
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def read(self, offset: int) -> tuple[int, bytes]:
        """Return the output at or after an offset and where it begins; empty if there is none."""
        if offset < len(self._kept):
            return offset, bytes(self._kept[offset : offset + CHUNK_BYTES])
        tail_begins = self._total - len(self._tail)
        begin = max(offset, tail_begins)
        within = begin - tail_begins
        return begin, bytes(self._tail[within : within + CHUNK_BYTES])

    @property
    def kept(self) -> bytes:
        return bytes(self._kept)

    @property
    def held_bytes(self) -> int:
        return len(self._kept) + len(self._tail)
