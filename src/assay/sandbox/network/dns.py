"""Questions about names and their answers, as bytes: the little of DNS that a program needs."""

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
    """What an answer says."""

    FOUND = 0
    FAILED = 2
    NO_SUCH_NAME = 3
    NOT_DONE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Who wants to know what about which name."""

    number: int
    name: str
    """In lower case, without the last dot."""
    wants_address: bool
    """Whether an IPv4 address is asked for; all else has no answer here."""
    text: bytes
    """As it was asked, to be repeated in the answer."""


def parse_question(message: bytes) -> Question | None:
    """Read what a program sent; None if it is not one question."""
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
    """Answer a question, with an address or without."""
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
        # What is no ASCII is shown as an escape, and is on nobody's list.
        labels.append(label.decode("ascii", "backslashreplace").lower())
        place += 1 + length
    return ".".join(labels), place + 1
