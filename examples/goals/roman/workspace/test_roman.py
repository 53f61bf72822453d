import pytest

from roman import from_roman, to_roman

PAIRS = [
    (1, "I"),
    (4, "IV"),
    (9, "IX"),
    (14, "XIV"),
    (40, "XL"),
    (90, "XC"),
    (400, "CD"),
    (1994, "MCMXCIV"),
    (2024, "MMXXIV"),
    (3999, "MMMCMXCIX"),
]


@pytest.mark.parametrize(("number", "text"), PAIRS)
def test_numbers_are_written(number, text):
    assert to_roman(number) == text


@pytest.mark.parametrize(("number", "text"), PAIRS)
def test_texts_are_read(number, text):
    assert from_roman(text) == number


def test_every_number_comes_back():
    assert all(from_roman(to_roman(number)) == number for number in range(1, 4000))


@pytest.mark.parametrize("number", [0, -1, 4000])
def test_numbers_out_of_range_are_refused(number):
    with pytest.raises(ValueError):
        to_roman(number)
