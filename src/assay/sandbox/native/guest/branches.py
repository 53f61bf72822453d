"""What a keeper knows of each of its lines of cells, and how it speaks of one to its supervisor."""

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from assay.sandbox.native.guest.messages import Listener, Message

LARGEST_WORD: Final = 4096


@dataclass(slots=True, kw_only=True)
class Channel:
    """Our end of the talk with one head."""

    end: socket.socket
    listener: Listener


def open_post(end: socket.socket) -> Channel:
    return Channel(end=end, listener=Listener(end, largest=LARGEST_WORD))


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a cell says of itself when it has come to its end."""

    pid: int
    code: int


@dataclass(slots=True, kw_only=True)
class Branch:
    """One line of cells: a head, and the cell that it has under way."""

    number: int
    reports: int
    post: Channel
    head: int = 0
    """Its pid; 0 once it is dead."""
    busy: bool = False
    cell: int = 0
    """Its pid; 0 before it is born."""
    cell_post: Channel | None = None
    asks: bool = False
    """Whether somebody else has to agree before its cell is kept."""
    done: Done | None = None
    """How its cell has ended that stands still until that is decided."""
    doomed: float | None = None
    """When to give up waiting for word of a cell that is to be ended."""
    branches: list["Branch"] = field(default_factory=list["Branch"])
    """Asked for, not born yet."""
    unwanted: bool = False
    """Whether it is to be ended as soon as it is born."""


def report(line: Branch, word: Message) -> None:
    """Tell the supervisor, if it is still there."""
    with suppress(OSError):
        os.write(line.reports, json.dumps(word).encode() + b"\n")
