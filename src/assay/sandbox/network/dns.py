"""DNS messages as bytes: the few parts that programs need."""

import ipaddress
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

_HEADER: Final = struct.Struct("!HHHHHH")
_TAIL: Final = struct.Struct("!HH")
_RECORD: Final = struct.Struct("!HHHIH")
_IS_ANSWER: Final = 0x8000
_OPERATION: Final = 0x7800
_RECURSION: Final = 0x0180
_LONGEST_LABEL: Final = 63
_LONGEST_NAME: Final = 255
_NAME_OF_QUESTION: Final = 0xC00C
_ADDRESS: Final = 1
_INTERNET: Final = 1
_LIFETIME_S: Final = 30


class Outcome(IntEnum):
    """The result of an answer."""

    FOUND = 0
    FAILED = 2
    NO_SUCH_NAME = 3
    NOT_DONE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One DNS question with the fields that its answer needs."""

    number: int
    name: str
    """In lower case, without the final dot."""
    wants_address: bool
    """Whether the question asks for an IPv4 address; other types have no answer here."""
    text: bytes
    """The original bytes, which the answer repeats."""


def parse_question(message: bytes) -> Question | None:
    """Parse a program's query; None if it is not exactly one question."""
    try:
        number, flags, questions, *_ = _HEADER.unpack_from(message)
        if flags & (_IS_ANSWER | _OPERATION) or questions != 1:
            return None
        name, end = _parse_name(message, _HEADER.size)
        kind, family = _TAIL.unpack_from(message, end)
    except (struct.error, ValueError, IndexError):
        return None
    return Question(
        number=number,
        name=name,
        wants_address=kind == _ADDRESS and family == _INTERNET,
        text=message[_HEADER.size : end + _TAIL.size],
    )


def build_answer(question: Question, outcome: Outcome, address: str = "") -> bytes:
    """Build the answer to a question, with or without an address."""
    flags = _IS_ANSWER | _RECURSION | outcome
    record = b""
    if address:
        packed = ipaddress.IPv4Address(address).packed
        fixed = _RECORD.pack(_NAME_OF_QUESTION, _ADDRESS, _INTERNET, _LIFETIME_S, len(packed))
        record = fixed + packed
    header = _HEADER.pack(question.number, flags, 1, int(bool(record)), 0, 0)
    return header + question.text + record


def _parse_name(message: bytes, start: int) -> tuple[str, int]:
    labels: list[str] = []
    place = start
    while length := message[place]:
        if length > _LONGEST_LABEL or place + length - start > _LONGEST_NAME:
            raise ValueError("not a plain name")
        label = message[place + 1 : place + 1 + length]
        # Non-ASCII bytes are escaped, and no allowlist contains them.
        labels.append(label.decode("ascii", "backslashreplace").lower())
        place += 1 + length
    return ".".join(labels), place + 1
