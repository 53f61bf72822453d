"""Nearest vectors: first by the signs of their coordinates, then exactly.

The signs of a vector fit into a few machine words, so that hundreds of thousands are compared in
milliseconds; only the best ones are compared exactly. Up to a few thousand vectors, all are.
"""

import heapq
import math
from array import array
from collections.abc import Sequence
from importlib import import_module
from operator import itemgetter, mul
from typing import Any, Final, Protocol

_LOOKED_AT: Final = 1024
"""The number of vectors to compare exactly."""
_WORD_BITS: Final = 64

Near = tuple[int, float]
"""A key, and the cosine of the angle between its vector and the query."""


class VectorIndex(Protocol):
    """Vectors of one length by number, one signed byte per coordinate."""

    def __len__(self) -> int: ...

    def put(self, keys: Sequence[int], vectors: Sequence[bytes]) -> None: ...

    def drop(self, key: int) -> None: ...

    def nearest(self, vector: bytes, limit: int) -> list[Near]: ...


def build_index(dimensions: int) -> VectorIndex:
    """Build the fastest index for the installed libraries."""
    try:
        numpy = import_module("numpy")
    except ImportError:
        return PlainIndex()
    return NumpyIndex(dimensions, numpy) if hasattr(numpy, "bitwise_count") else PlainIndex()


class PlainIndex:
    """Index of signs as long integers; needs the standard library only."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._keys: list[int] = []
        self._signs: list[int] = []
        self._rows: list[bytes] = []

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, keys: Sequence[int], vectors: Sequence[bytes]) -> None:
        for key, vector in zip(keys, vectors, strict=True):
            slot = self._slots.get(key)
            if slot is None:
                self._slots[key] = len(self._keys)
                self._keys.append(key)
                self._signs.append(_signs(vector))
                self._rows.append(vector)
            else:
                self._signs[slot], self._rows[slot] = _signs(vector), vector

    def drop(self, key: int) -> None:
        slot = self._slots.pop(key, None)
        if slot is None:
            return
        last = (self._keys.pop(), self._signs.pop(), self._rows.pop())
        if slot < len(self._keys):
            self._keys[slot], self._signs[slot], self._rows[slot] = last
            self._slots[last[0]] = slot

    def nearest(self, vector: bytes, limit: int) -> list[Near]:
        slots = list[int](range(len(self._keys)))
        if len(slots) > _LOOKED_AT:
            looked_for = _signs(vector)
            distances = [(signs ^ looked_for).bit_count() for signs in self._signs]
            slots = heapq.nsmallest(_LOOKED_AT, slots, key=distances.__getitem__)
        wanted = array("b", vector)
        length = _length(wanted)
        found = [(self._keys[slot], _cosine(self._rows[slot], wanted, length)) for slot in slots]
        return heapq.nlargest(limit, found, key=itemgetter(1))


def _signs(vector: bytes) -> int:
    # A byte below 128 that is not zero is a positive coordinate.
    return int("".join("1" if 0 < byte < 128 else "0" for byte in vector) or "0", 2)  # noqa: PLR2004


def _length(vector: Sequence[int]) -> float:
    return math.sqrt(sum(map(mul, vector, vector)))


def _cosine(row: bytes, wanted: Sequence[int], length: float) -> float:
    numbers = array("b", row)
    product = length * _length(numbers)
    return sum(map(mul, numbers, wanted)) / product if product else 0.0


class NumpyIndex:
    """Index of signs in rows of machine words, one row for each 64 coordinates."""

    def __init__(self, dimensions: int, numpy: Any) -> None:
        self._np = numpy
        self._dimensions = dimensions
        self._words = -(-dimensions // _WORD_BITS)
        self._count = 0
        self._slots: dict[int, int] = {}
        self._keys: Any = numpy.zeros(0, numpy.int64)
        self._rows: Any = numpy.zeros((0, dimensions), numpy.int8)
        self._signs: Any = numpy.zeros((self._words, 0), numpy.uint64)

    def __len__(self) -> int:
        return self._count

    def put(self, keys: Sequence[int], vectors: Sequence[bytes]) -> None:
        if not keys:
            return
        np = self._np
        rows = np.frombuffer(b"".join(vectors), np.int8).reshape(len(keys), self._dimensions)
        self._make_room(self._count + len(keys))
        slots = np.fromiter((self._slot(key) for key in keys), np.int64, len(keys))
        self._keys[slots] = keys
        self._rows[slots] = rows
        self._signs[:, slots] = self._signs_of(rows)

    def drop(self, key: int) -> None:
        slot = self._slots.pop(key, None)
        if slot is None:
            return
        self._count -= 1
        last = self._count
        if slot != last:
            self._keys[slot] = self._keys[last]
            self._rows[slot] = self._rows[last]
            self._signs[:, slot] = self._signs[:, last]
            self._slots[int(self._keys[slot])] = slot

    def nearest(self, vector: bytes, limit: int) -> list[Near]:
        np = self._np
        wanted = np.frombuffer(vector, np.int8)
        length = float(np.linalg.norm(wanted.astype(np.float32)))
        if not self._count or not length:
            return []
        slots = self._candidates(wanted)
        rows = self._rows[slots].astype(np.float32)
        lengths = np.linalg.norm(rows, axis=1) * length
        cosines = rows @ wanted.astype(np.float32) / np.maximum(lengths, 1e-9)
        best = np.argsort(-cosines, kind="stable")[:limit]
        return [(int(self._keys[slots[at]]), float(cosines[at])) for at in best]

    def _candidates(self, wanted: Any) -> Any:
        np = self._np
        if self._count <= _LOOKED_AT:
            return np.arange(self._count)
        signs = self._signs_of(wanted[None, :])[:, 0]
        distances = np.zeros(self._count, np.uint16)
        for word in range(self._words):
            distances += np.bitwise_count(self._signs[word, : self._count] ^ signs[word])
        # There are few distances, so that counting is far faster than sorting.
        up_to = np.bincount(distances).cumsum()
        last = int(np.searchsorted(up_to, _LOOKED_AT))
        closer = np.flatnonzero(distances < last)
        as_close = np.flatnonzero(distances == last)[: _LOOKED_AT - len(closer)]
        return np.concatenate([closer, as_close])

    def _signs_of(self, rows: Any) -> Any:
        np = self._np
        packed = np.packbits(rows > 0, axis=1)
        whole = np.zeros((len(rows), self._words * _WORD_BITS // 8), np.uint8)
        whole[:, : packed.shape[1]] = packed
        return whole.view(np.uint64).T

    def _slot(self, key: int) -> int:
        slot = self._slots.setdefault(key, self._count)
        if slot == self._count:
            self._count += 1
        return slot

    def _make_room(self, needed: int) -> None:
        room = len(self._keys)
        if needed <= room:
            return
        np = self._np
        more = max(needed, room * 2, _LOOKED_AT) - room
        self._keys = np.concatenate([self._keys, np.zeros(more, np.int64)])
        self._rows = np.concatenate([self._rows, np.zeros((more, self._dimensions), np.int8)])
        grown = np.zeros((self._words, room + more), np.uint64)
        grown[:, :room] = self._signs
        self._signs = grown
