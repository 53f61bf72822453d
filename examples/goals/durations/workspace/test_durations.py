import pytest

from durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("2d 4h", 187200),
        ("1w", 604800),
        ("1H 5M 3S", 3903),
        (" 10m ", 600),
        ("0s", 0),
    ],
)
def test_texts_are_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "  ", "10", "5x", "1h1h", "-5m", "h", "1.5h", "5m 10"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59, "59s"),
        (60, "1m"),
        (5400, "1h30m"),
        (187200, "2d4h"),
        (604800, "1w"),
        (694861, "1w1d1h1m1s"),
    ],
)
def test_seconds_are_written(seconds, text):
    assert format_duration(seconds) == text
