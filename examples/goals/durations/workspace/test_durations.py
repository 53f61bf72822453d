import pytest

from durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("2d 4h", 187200),
        ("1h 5m 3s", 3903),
        ("0s", 0),
    ],
)
def test_texts_are_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "5x", "abc"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError):
        parse_duration(text)
