"""The kernel manager's state of each branch, and the reports about it to the supervisor."""

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
    """The kernel manager's end of the socket to one Python kernel."""

    end: socket.socket
    listener: Listener


def open_post(end: socket.socket) -> Channel:
    return Channel(end=end, listener=Listener(end, largest=LARGEST_WORD))


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The report of a cell about its own end."""

    pid: int
    code: int


@dataclass(slots=True, kw_only=True)
class Branch:
    """One branch: a Python kernel and its running cell."""

    number: int
    reports: int
    post: Channel
    head: int = 0
    """The pid of the Python kernel; 0 after its death."""
    busy: bool = False
    cell: int = 0
    """The pid of the running cell; 0 before it is forked."""
    cell_post: Channel | None = None
    asks: bool = False
    """Whether the supervisor must confirm before the cell is kept."""
    done: Done | None = None
    """The end report of a stopped cell that waits for the supervisor's decision."""
    doomed: float | None = None
    """When to stop waiting for a cell that has to end."""
    branches: list["Branch"] = field(default_factory=list["Branch"])
    """Requested branches that are not forked yet."""
    unwanted: bool = False
    """Whether to close this branch as soon as it is forked."""


def report(line: Branch, word: Message) -> None:
    """Report to the supervisor, if it is still there."""
    with suppress(OSError):
        os.write(line.reports, json.dumps(word).encode() + b"\n")
