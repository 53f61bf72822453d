"""What a cell says it shows is read as far as it can be believed, and no further."""

import json
import struct
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts.execution import CellError, RichOutput
from assay.sandbox.native.host.messages import decode_answers


def frame(header: Mapping[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("!I", len(text)) + text + data


SEVEN = frame({"kind": "value", "forms": [["text/plain", 1]]}, b"7")


def test_values_and_an_exception_are_read() -> None:
    error = {"kind": "error", "name": "ValueError", "message": "no", "traceback": ["a", "b"]}
    picture = {
        "kind": "display",
        "forms": [["text/plain", 3], ["image/png", 2]],
        "dropped": ["text/html"],
    }

    answers = decode_answers(SEVEN + frame(picture, b"figPN") + frame(error))

    assert answers.outputs == (
        RichOutput(kind="value", forms={"text/plain": b"7"}),
        RichOutput(
            kind="display",
            forms={"text/plain": b"fig", "image/png": b"PN"},
            dropped=("text/html",),
        ),
    )
    assert answers.error == CellError(name="ValueError", message="no", traceback=("a", "b"))
    assert answers.complaint == ""


@pytest.mark.parametrize(
    "junk",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00",
        struct.pack("!I", 900_000) + b"[" * 900_000,
        struct.pack("!I", 4) + b"null",
        frame({"kind": "other"}),
        frame({"kind": "value", "forms": [["text/plain", 1 << 60]]}),
        frame({"kind": "value", "forms": [["text/plain", -1]]}, b"x"),
        frame({"kind": "value", "forms": [["text/plain", 5000]]}, b"cut"),
        frame({"kind": "value", "forms": [["no media type", 1]]}, b"x"),
        frame({"kind": "value", "forms": [["text/plain", 0]] * 100}),
        frame({"kind": "value", "forms": [], "dropped": [7]}),
        frame({"kind": "error", "name": 1, "message": "", "traceback": []}),
        frame({"kind": "error", "name": "E", "message": "", "traceback": "text"}),
    ],
)
def test_junk_ends_the_reading_and_is_said(junk: bytes) -> None:
    answers = decode_answers(SEVEN + junk + SEVEN)

    assert [output.text for output in answers.outputs] == ["7"]
    assert answers.complaint


def test_frames_without_end_are_cut_off() -> None:
    answers = decode_answers(SEVEN * 10_000)

    assert len(answers.outputs) < 200
    assert answers.complaint


@given(st.binary(max_size=200))
def test_whatever_bytes_come_are_read_without_an_error(data: bytes) -> None:
    decode_answers(data)
