import random
from importlib.util import find_spec

import pytest

from assay.memory.embedding import NumpyIndex, PlainIndex, VectorIndex, build_index, hashed, pack
from tests.support.requirements import require

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "nrstlmk"]


def texts(count: int) -> list[str]:
    draw = random.Random(5)  # noqa: S311 - made-up text
    return [" ".join(draw.choices(WORDS, k=12)) for _ in range(count)]


@pytest.fixture(params=["plain", "numpy"])
def index(request: pytest.FixtureRequest) -> VectorIndex:
    if request.param == "plain":
        return PlainIndex()
    require("numpy", available=find_spec("numpy") is not None, why="it is not installed")
    import numpy as np

    return NumpyIndex(256, np)


def put(index: VectorIndex, words: list[str]) -> None:
    index.put(list(range(len(words))), [pack(hashed(text)) for text in words])


def test_nothing_is_nearest_in_an_empty_index(index: VectorIndex) -> None:
    assert index.nearest(pack(hashed("a word")), 3) == []


@pytest.mark.parametrize("count", [5, 3000])
def test_the_vector_itself_is_nearest_and_then_what_is_like_it(
    index: VectorIndex, count: int
) -> None:
    known = texts(count)
    put(index, known)
    looked_for = known[3] + " " + WORDS[0]

    near = index.nearest(pack(hashed(looked_for)), 3)

    assert near[0][0] == 3
    assert near[0][1] > 0.9
    assert [cosine for _, cosine in near] == sorted((c for _, c in near), reverse=True)


def test_what_was_dropped_is_not_found_and_the_rest_is(index: VectorIndex) -> None:
    known = texts(40)
    put(index, known)

    for key in (0, 39, 17, 17, 99):
        index.drop(key)

    assert len(index) == 37
    for key, text in enumerate(known):
        found = index.nearest(pack(hashed(text)), 1)[0]
        assert (found[0] == key) is (key not in {0, 17, 39})


def test_a_vector_that_is_put_again_takes_the_place_of_the_first(index: VectorIndex) -> None:
    put(index, texts(10))
    index.put([4, 10], [pack(hashed("something else")), pack(hashed("new here"))])

    assert len(index) == 11
    assert index.nearest(pack(hashed("something else")), 1)[0][0] == 4
    assert index.nearest(pack(hashed("new here")), 1)[0][0] == 10


def test_a_text_without_words_is_like_nothing(index: VectorIndex) -> None:
    put(index, ["", "some words"])

    assert all(cosine == 0 for _, cosine in index.nearest(pack(hashed("")), 5))


def test_both_indexes_find_the_same() -> None:
    require("numpy", available=find_spec("numpy") is not None, why="it is not installed")
    known = texts(2500)
    one, other = PlainIndex(), build_index(256)
    assert isinstance(other, NumpyIndex)
    put(one, known)
    put(other, known)

    for text in known[:40]:
        wanted = pack(hashed(f"{text} {WORDS[7]}"))
        assert one.nearest(wanted, 1)[0][0] == other.nearest(wanted, 1)[0][0]
        assert one.nearest(wanted, 1)[0][1] == pytest.approx(other.nearest(wanted, 1)[0][1], 1e-3)
