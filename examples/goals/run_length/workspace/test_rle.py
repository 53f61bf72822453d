import pytest

from rle import decode, encode

PAIRS = [
    ("", ""),
    ("A", "A"),
    ("WWWB", "3WB"),
    ("XYZ", "XYZ"),
    ("aabbb", "2a3b"),
    ("  hsqq qww  ", "2 hs2q q2w2 "),
    ("W" * 12 + "B" + "W" * 100, "12WB100W"),
]


@pytest.mark.parametrize(("plain", "packed"), PAIRS)
def test_texts_are_packed(plain, packed):
    assert encode(plain) == packed


@pytest.mark.parametrize(("plain", "packed"), PAIRS)
def test_texts_are_unpacked(plain, packed):
    assert decode(packed) == plain
