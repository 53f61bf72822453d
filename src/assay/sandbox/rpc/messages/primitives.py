"""The smallest parts of messages: names as bytes, ids, finite numbers and closed sets.

These functions check every incoming value and raise `MessageError`. A server answers with an
invalid request error; a client distrusts the server from then on.
"""

import math
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final, TypeVar

_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
_LARGEST_NUMBER: Final = 10**15
_LONGEST_PATH_BYTES: Final = 1 << 16
"""Longer than any kernel accepts; the workspace explains what is wrong with shorter ones."""

Number = TypeVar("Number", bound=int)
Member = TypeVar("Member", bound=str)


class MessageError(ValueError):
    """The other side sent a message that violates the protocol."""


def to_name(text: str) -> bytes:
    """Encode a name as the bytes that the kernel knows.

    Raises:
        MessageError: If no such bytes exist.
    """
    try:
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise MessageError(f"cannot be written as bytes: {text!r:.80}") from error


def from_name(name: bytes) -> str:
    """Decode a name; non-text bytes become surrogates, as in Python's file names."""
    return name.decode("utf-8", errors="surrogateescape")


def to_path(path: PurePosixPath) -> bytes:
    """Encode a path, as `to_name` does."""
    return to_name(str(path))


def from_path(name: bytes) -> PurePosixPath:
    """Decode a path; the sandbox decides whether it leaves the workspace.

    Raises:
        MessageError: If it is too long to check.
    """
    if len(name) > _LONGEST_PATH_BYTES:
        raise MessageError(f"a path of {len(name)} bytes")
    return PurePosixPath(from_name(name))


def to_text(text: str) -> str:
    """Return text that a message can hold: lone surrogates are escaped."""
    return text.encode("utf-8", errors="backslashreplace").decode()


def check_id(text: str, *, of: str) -> str:
    """Return a valid id.

    Raises:
        MessageError: If the id is not valid.
    """
    if not _ID.fullmatch(text):
        raise MessageError(f"not the id of {of}: {text!r:.80}")
    return text


def seconds(value: float, *, of: str) -> float:
    """Return a valid duration.

    Raises:
        MessageError: If it is negative, infinite or not a number.
    """
    if not (math.isfinite(value) and 0 <= value <= _LARGEST_NUMBER):
        raise MessageError(f"{of} cannot be {value!r}")
    return value


def count(value: int, *, of: str) -> int:
    """Return a valid count.

    Raises:
        MessageError: If it is out of range.
    """
    if not 0 <= value <= _LARGEST_NUMBER:
        raise MessageError(f"{of} cannot be {value}")
    return value


def member(table: Mapping[Number, Member], number: Number, *, of: str) -> Member:
    """Return the member of a closed set.

    Raises:
        MessageError: If the set has no such member.
    """
    try:
        return table[number]
    except KeyError:
        raise MessageError(f"there is no {of} {number}") from None
