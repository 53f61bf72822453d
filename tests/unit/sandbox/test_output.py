from hypothesis import given
from hypothesis import strategies as st

from assay.sandbox.output import FLOOD_FACTOR, Capture


def captured(limit_bytes: int, *pieces: bytes) -> Capture:
    capture = Capture(limit_bytes)
    for piece in pieces:
        capture.add(piece)
    return capture


def test_what_fits_is_kept_whole() -> None:
    capture = captured(6, b"abc", b"", b"def")

    assert capture.kept == b"abcdef"
    assert capture.dropped_bytes == 0
    assert not capture.overflowed


def test_the_beginning_is_kept_and_the_rest_is_counted() -> None:
    capture = captured(4, b"abc", b"def", b"gh")

    assert capture.kept == b"abcd"
    assert capture.dropped_bytes == 4
    assert capture.overflowed


def test_a_little_too_much_is_no_flood() -> None:
    capture = captured(4, b"x" * (4 + FLOOD_FACTOR * 4))

    assert capture.overflowed
    assert not capture.flooded


def test_far_too_much_is_a_flood() -> None:
    capture = captured(4, b"x" * (4 + FLOOD_FACTOR * 4), b"x")

    assert capture.flooded


@given(st.integers(1, 50), st.lists(st.binary(max_size=40), max_size=20))
def test_every_byte_is_either_kept_or_counted(limit_bytes: int, pieces: list[bytes]) -> None:
    whole = b"".join(pieces)

    capture = captured(limit_bytes, *pieces)

    assert capture.kept == whole[:limit_bytes]
    assert capture.dropped_bytes == len(whole) - len(capture.kept)
