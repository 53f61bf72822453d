"""Embeddings of texts, and the search for the nearest vectors.

`HashedEmbedder` needs no download: it hashes words and parts of words. The hashes have no
meaning: `car` and `automobile` are unrelated. This is enough for failures, which repeat the
words of programs. Other embedders call a model on this machine or an OpenAI-compatible endpoint.
The signs of a vector fit into a few machine words, so that hundreds of thousands are compared in
milliseconds; only the best ones are compared exactly. Up to a few thousand vectors, all are.
"""

import heapq
import math
import re
import zlib
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from operator import itemgetter, mul
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from pydantic import SecretStr

from assay.contracts.errors import ModelUnavailableError, require

if TYPE_CHECKING:
    from openai import AsyncOpenAI


DIMENSIONS: Final = 256
_MAX_CHARS: Final = 4_000
_SPREAD: Final = 4
"""Coordinates per feature: enough that even short texts leave few of them at zero."""
_PIECE: Final = 3
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_a-zA-Z]+")
_LEAST: Final = 0.2
_NAME: Final = re.compile(r"[A-Za-z]\w*(?:[._]\w+)+")
"""An identifier or file name of more than one word: texts that share one are similar."""
_NAME_WEIGHT: Final = 1.5
_FREQUENT: Final = frozenset(
    re.findall(
        r"\w+",
        "a all an and any are as at be been but by can do does each every for from give given "
        "gives has have how if in into is it its make may must no not of on one only or other "
        "should so such than that the their them then there they this to two use used using was "
        "way what when where which with without write you i add argument assert assertion "
        "attribute bool call called class code def defined dict else empty error exception "
        "expected fail failed false file files function got import index int key list line "
        "method methods module name named none number numbers object pass py python raise "
        "raises return returns self str string strings test tests text true type value values ",
    )
)

Vector = Sequence[float]


class Embedder(Protocol):
    """A way to turn text into vectors; only vectors of the same embedder name are comparable."""

    @property
    def name(self) -> str: ...

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return a packed vector for each text.

        Raises:
            ModelUnavailableError: If the model does not answer.
        """
        ...


class HashedEmbedder:
    """Hashes words, pairs of words and parts of words to a few coordinates each."""

    name = f"hashed-{DIMENSIONS}"

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        return [pack(hashed(text)) for text in texts]


class ModelEmbedder:
    """The vectors of a model in the stored format."""

    def __init__(
        self, name: str, vectors: Callable[[Sequence[str]], Awaitable[Sequence[Vector]]]
    ) -> None:
        self.name = name
        self._vectors = vectors

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        return [pack(vector) for vector in await self._vectors(texts)]


def hashed(text: str) -> Vector:
    """Return the vector of a text."""
    vector = array("d", bytes(8 * DIMENSIONS))
    words = [word.lower() for word in _WORDS.findall(text[:_MAX_CHARS])]
    for word, count in Counter(words).items():
        weight = (1 + math.log(count)) * (_LEAST if word in _FREQUENT else 1.0)
        for index, sign in _features_of_word(word):
            vector[index] += sign * weight
    for name, count in Counter(_NAME.findall(text[:_MAX_CHARS])).items():
        weight = _NAME_WEIGHT * (1 + math.log(count))
        for index, sign in _places(name.lower()):
            vector[index] += sign * weight
    for pair, count in Counter(pairwise(words)).items():
        weight = 0.5 * (1 + math.log(count))
        for index, sign in _places(" ".join(pair)):
            vector[index] += sign * weight
    return vector


def similarity(one: str, other: str) -> float:
    """Return how similar two texts are: 1 for equal ones, about 0 for unrelated ones."""
    a, b = hashed(one), hashed(other)
    lengths = math.hypot(*a) * math.hypot(*b)
    return sum(map(mul, a, b)) / lengths if lengths else 0.0


def pack(vector: Vector) -> bytes:
    """Return a vector as one signed byte per coordinate: only its direction matters."""
    largest = max((abs(number) for number in vector), default=0.0)
    if not largest or not all(map(math.isfinite, vector)):
        return bytes(len(vector))
    return array("b", (round(number / largest * 127) for number in vector)).tobytes()


@lru_cache(maxsize=50_000)
def _features_of_word(word: str) -> tuple[tuple[int, float], ...]:
    """Return the features of a word: the word itself, and with less weight each part of it."""
    padded = f"<{word}>"
    pieces = {padded[at : at + _PIECE] for at in range(len(padded) - _PIECE + 1)} - {padded}
    share = 1 / math.sqrt(len(pieces)) if pieces else 0.0
    found = list(_places(padded))
    # Sorted, because the order of a set of strings differs between processes.
    for piece in sorted(pieces):
        found.extend((index, sign * share) for index, sign in _places(piece))
    return tuple(found)


def _places(feature: str) -> tuple[tuple[int, float], ...]:
    encoded = feature.encode("utf-8", "replace")
    found: list[tuple[int, float]] = []
    for turn in range(_SPREAD):
        number = zlib.crc32(encoded, turn * 0x9E3779B1 & 0xFFFFFFFF)
        # CRC is linear: without mixing, the coordinates of one feature would depend on each other.
        number = (number ^ number >> 16) * 0x45D9F3B & 0xFFFFFFFF
        number ^= number >> 16
        found.append((number % DIMENSIONS, 1.0 if number >> 31 else -1.0))
    return tuple(found)


_BATCH: Final = 64
_MAX_SENT_CHARS: Final = 4_000
_TIMEOUT_S: Final = 20.0
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_NO_KEY: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address and the model of an embedding endpoint."""

    base_url: str
    model: str
    api_key: SecretStr = field(default_factory=lambda: SecretStr(""))


@asynccontextmanager
async def open_endpoint_embedder(endpoint: Endpoint) -> AsyncGenerator["EndpointEmbedder"]:
    """Open a connection to an endpoint; leaving the context closes it.

    Raises:
        MissingExtraError: If the SDK is not installed.
    """
    with require("asking for embeddings", extra="openai"):
        import httpx2
        from openai import AsyncOpenAI, Omit

    # As for models: a key goes only to its own provider, and local servers need no proxy.
    client = httpx2.AsyncClient(
        timeout=_TIMEOUT_S,
        follow_redirects=False,
        trust_env=urlsplit(endpoint.base_url).hostname not in _LOOPBACK,
    )
    async with AsyncOpenAI(
        api_key=endpoint.api_key.get_secret_value() or _NO_KEY,
        base_url=endpoint.base_url,
        max_retries=1,
        default_headers={"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()},  # pyright: ignore[reportArgumentType] - documented
        http_client=client,
    ) as sdk:
        yield EndpointEmbedder(sdk, endpoint)


class EndpointEmbedder:
    """Requests vectors in batches."""

    def __init__(self, client: "AsyncOpenAI", endpoint: Endpoint) -> None:
        self._client = client
        self._model = endpoint.model
        self.name = f"{endpoint.model} at {urlsplit(endpoint.base_url).netloc}"

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        packed: list[bytes] = []
        for start in range(0, len(texts), _BATCH):
            packed += await self._batch(texts[start : start + _BATCH])
        return packed

    async def _batch(self, texts: Sequence[str]) -> list[bytes]:
        from openai import OpenAIError

        # Many servers refuse an empty text.
        inputs = [text[:_MAX_SENT_CHARS] or " " for text in texts]
        try:
            answer = await self._client.embeddings.create(
                model=self._model, input=inputs, encoding_format="float"
            )
        except OpenAIError as error:
            raise ModelUnavailableError(f"no embeddings from {self.name}: {error}") from error
        vectors = sorted(answer.data, key=lambda one: one.index)
        lengths = {len(one.embedding) for one in vectors}
        if len(vectors) != len(inputs) or len(lengths) != 1:
            raise ModelUnavailableError(
                f"{self.name} sent {len(vectors)} vectors for {len(inputs)} texts, "
                f"of {len(lengths)} lengths"
            )
        return [pack(one.embedding) for one in vectors]


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
        query = array("b", vector)
        length = _length(query)
        found = [(self._keys[slot], _cosine(self._rows[slot], query, length)) for slot in slots]
        return heapq.nlargest(limit, found, key=itemgetter(1))


def _signs(vector: bytes) -> int:
    # A byte below 128 that is not zero is a positive coordinate.
    return int("".join("1" if 0 < byte < 128 else "0" for byte in vector) or "0", 2)  # noqa: PLR2004


def _length(vector: Sequence[int]) -> float:
    return math.sqrt(sum(map(mul, vector, vector)))


def _cosine(row: bytes, query: Sequence[int], length: float) -> float:
    numbers = array("b", row)
    product = length * _length(numbers)
    return sum(map(mul, numbers, query)) / product if product else 0.0


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
        query = np.frombuffer(vector, np.int8)
        length = float(np.linalg.norm(query.astype(np.float32)))
        if not self._count or not length:
            return []
        slots = self._candidates(query)
        rows = self._rows[slots].astype(np.float32)
        lengths = np.linalg.norm(rows, axis=1) * length
        cosines = rows @ query.astype(np.float32) / np.maximum(lengths, 1e-9)
        best = np.argsort(-cosines, kind="stable")[:limit]
        return [(int(self._keys[slots[at]]), float(cosines[at])) for at in best]

    def _candidates(self, query: Any) -> Any:
        np = self._np
        if self._count <= _LOOKED_AT:
            return np.arange(self._count)
        signs = self._signs_of(query[None, :])[:, 0]
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
