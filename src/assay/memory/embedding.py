"""Embeddings without a download: hashed words and parts of words.

Texts that share words or parts of words are close together. The hashes have no meaning: `car` and
`automobile` are unrelated. This is enough for failures, which repeat the words of programs.
"""

import math
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import mul
from typing import Final, Protocol

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
        for place, sign in _features_of_word(word):
            vector[place] += sign * weight
    for name, count in Counter(_NAME.findall(text[:_MAX_CHARS])).items():
        weight = _NAME_WEIGHT * (1 + math.log(count))
        for place, sign in _places(name.lower()):
            vector[place] += sign * weight
    for pair, count in Counter(pairwise(words)).items():
        weight = 0.5 * (1 + math.log(count))
        for place, sign in _places(" ".join(pair)):
            vector[place] += sign * weight
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
        found.extend((place, sign * share) for place, sign in _places(piece))
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
