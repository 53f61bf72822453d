"""The smallest parts of messages: names as bytes, ids, numbers that are numbers, closed sets.

Whatever comes in is checked here first. What is wrong with it is said as a `MessageError`; a server
takes it for a wrong request, a client for a peer that cannot be trusted any more.
"""

import math
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final, TypeVar

_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
_LARGEST_NUMBER: Final = 10**15
_LONGEST_PATH_BYTES: Final = 1 << 16
"""Longer than any kernel takes; the workspace says what is wrong with what is shorter."""

Number = TypeVar("Number", bound=int)
Member = TypeVar("Member", bound=str)


class MessageError(ValueError):
    """A message from the other side is not one that it could rightly have sent."""


def to_name(text: str) -> bytes:
    """Encode a name as the kernel knows it.

    Raises:
        MessageError: If there are no such bytes.
    """
    try:
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise MessageError(f"cannot be written as bytes: {text!r:.80}") from error


def from_name(name: bytes) -> str:
    """Decode a name; bytes that are no text are kept as Python keeps them in file names."""
    return name.decode("utf-8", errors="surrogateescape")


def to_path(path: PurePosixPath) -> bytes:
    """Encode a path, as `to_name` does."""
    return to_name(str(path))


def from_path(name: bytes) -> PurePosixPath:
    """Decode a path; whether it leads out of the workspace is for the sandbox to say.

    Raises:
        MessageError: If it is too long to be looked at.
    """
    if len(name) > _LONGEST_PATH_BYTES:
        raise MessageError(f"a path of {len(name)} bytes")
    return PurePosixPath(from_name(name))


def to_text(text: str) -> str:
    """Return text as a message can hold it: half characters are written out."""
    return text.encode("utf-8", errors="backslashreplace").decode()


def check_id(text: str, *, of: str) -> str:
    """Return an id that is one.

    Raises:
        MessageError: If it is not.
    """
    if not _ID.fullmatch(text):
        raise MessageError(f"not the id of {of}: {text!r:.80}")
    return text


def seconds(value: float, *, of: str) -> float:
    """Return a duration that is one.

    Raises:
        MessageError: If it is negative, endless or no number.
    """
    if not (math.isfinite(value) and 0 <= value <= _LARGEST_NUMBER):
        raise MessageError(f"{of} cannot be {value!r}")
    return value


def count(value: int, *, of: str) -> int:
    """Return a number of things that there can be.

    Raises:
        MessageError: If there cannot be so many.
    """
    if not 0 <= value <= _LARGEST_NUMBER:
        raise MessageError(f"{of} cannot be {value}")
    return value


def member(table: Mapping[Number, Member], number: Number, *, of: str) -> Member:
    """Return the member of a closed set.

    Raises:
        MessageError: If there is no such member.
    """
    try:
        return table[number]
    except KeyError:
        raise MessageError(f"there is no {of} {number}") from None
