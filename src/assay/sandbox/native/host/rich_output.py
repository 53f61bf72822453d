"""Decodes the rich output of a cell. The data is untrusted."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from assay.contracts.interpreter import CellError, RichOutput
from assay.sandbox.native.guest.display import (
    HEADER_LENGTH,
    LARGEST_CELL,
    LARGEST_FORM,
    LARGEST_TEXT,
    MOST_SHOWN,
)

_LARGEST_HEADER: Final = 1 << 20
_BYTES_PER_CHARACTER: Final = 4
_MOST_FORMS: Final = 32
_MOST_LINES: Final = 500
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}/[a-z0-9][a-zA-Z0-9.+;= -]{0,80}")
MOST_BYTES: Final = (
    LARGEST_CELL + LARGEST_TEXT * _BYTES_PER_CHARACTER * MOST_SHOWN + _LARGEST_HEADER * 4
)
"""More than an honest cell ever sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The result of a cell apart from its streams."""

    outputs: tuple[RichOutput, ...] = ()
    error: CellError | None = None
    complaint: str = ""
    """Why decoding stopped; empty if everything was decoded."""


class _Unreadable(Exception):  # noqa: N818 - stops the decoding and never leaves this module
    pass


def decode_answers(data: bytes) -> Answers:
    """Decode frames up to the first invalid one."""
    outputs: list[RichOutput] = []
    error: CellError | None = None
    complaint = ""
    try:
        for header, rest in _frames(data):
            if header.get("kind") == "error":
                error = _error(header)
            else:
                outputs.append(_output(header, rest))
    except _Unreadable as reason:
        complaint = str(reason)
    return Answers(outputs=tuple(outputs), error=error, complaint=complaint)


def _frames(data: bytes) -> Iterator[tuple[dict[str, Any], memoryview]]:
    """Yield each header with the bytes of its forms."""
    rest = memoryview(data)
    # Two more frames: the exception, and the note about omitted output.
    for _ in range(MOST_SHOWN + 2):
        if not rest:
            return
        header, rest = _header(rest)
        size = sum(size for _, size in _sizes(header))
        if size > len(rest):
            raise _Unreadable("a frame that is cut off")
        yield header, rest[:size]
        rest = rest[size:]
    if rest:
        raise _Unreadable("more than a cell may show")


def _header(rest: memoryview) -> tuple[dict[str, Any], memoryview]:
    if len(rest) < HEADER_LENGTH.size:
        raise _Unreadable("a frame that is cut off")
    (length,) = HEADER_LENGTH.unpack_from(rest)
    rest = rest[HEADER_LENGTH.size :]
    if length > min(_LARGEST_HEADER, len(rest)):
        raise _Unreadable("a frame of impossible length")
    try:
        header = json.loads(bytes(rest[:length]))
    except (ValueError, RecursionError) as error:
        raise _Unreadable("a header that is no JSON") from error
    if not isinstance(header, dict):
        raise _Unreadable("a header that is no object")
    return cast("dict[str, Any]", header), rest[length:]


def _sizes(header: dict[str, Any]) -> list[tuple[str, int]]:
    forms = _list_of(header, "forms", most=_MOST_FORMS)
    sizes: list[tuple[str, int]] = []
    for form in forms:
        match form:
            case [str(name), int(size)] if 0 <= size <= LARGEST_FORM:
                sizes.append((_media_type(name), int(size)))
            case _:
                raise _Unreadable("a form of impossible size")
    return sizes


def _output(header: dict[str, Any], data: memoryview) -> RichOutput:
    forms: dict[str, bytes] = {}
    for name, size in _sizes(header):
        forms[name], data = bytes(data[:size]), data[size:]
    dropped = _list_of(header, "dropped", most=_MOST_FORMS)
    return RichOutput(
        kind=_kind(header.get("kind")),
        forms=forms,
        dropped=tuple(_media_type(name) for name in dropped),
    )


def _kind(kind: object) -> Literal["value", "display"]:
    match kind:
        case "value":
            return "value"
        case "display":
            return "display"
        case _:
            raise _Unreadable("a frame of unknown kind")


def _error(header: dict[str, Any]) -> CellError:
    name, message = header.get("name"), header.get("message")
    lines = _list_of(header, "traceback", most=_MOST_LINES)
    if not (isinstance(name, str) and isinstance(message, str)):
        raise _Unreadable("an exception without a name")
    return CellError(name=name, message=message, traceback=tuple(str(line) for line in lines))


def _list_of(header: dict[str, Any], name: str, *, most: int) -> list[Any]:
    found = header.get(name, [])
    if not isinstance(found, list) or len(cast("list[Any]", found)) > most:
        raise _Unreadable(f"no list of {name}")
    return cast("list[Any]", found)


def _media_type(name: object) -> str:
    if not isinstance(name, str) or not _MEDIA_TYPE.fullmatch(name):
        raise _Unreadable("what is no media type")
    return name
