"""Reads the frames from the virtual machine and checks every value."""

import base64
import binascii
import json
import os
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.errors import (
    AssayError,
    FileTooLargeError,
    NotARegularFileError,
    PathOutsideWorkspaceError,
    SandboxUnavailableError,
    UsageError,
    WorkspaceError,
    WorkspaceFileNotFoundError,
    WorkspaceFullError,
)
from assay.contracts.execution import FileInfo, Reason
from assay.sandbox.native.host.supervisor import RawResult
from assay.sandbox.native.host.usage_monitor import Usage
from assay.sandbox.output import Capture

Frame = dict[str, Any]
_LONGEST_LINE: Final = 1 << 20
_REFUSALS: Final[dict[str, type[AssayError]]] = {
    kind.__name__: kind
    for kind in (
        NotARegularFileError,
        PathOutsideWorkspaceError,
        UsageError,
        WorkspaceError,
        WorkspaceFileNotFoundError,
        WorkspaceFullError,
    )
}
_KINDS: Final = ("file", "directory", "symlink", "other")


def garbled(why: str) -> SandboxUnavailableError:
    """Build the error for output that Assay's code in the machine cannot have sent."""
    return SandboxUnavailableError(
        f"what came out of the sandbox makes no sense: {why}", dispatch="outcome_unknown"
    )


class FrameReader:
    """Splits a text stream into frames and passes each one on."""

    def __init__(self, on_frame: Callable[[Frame], None]) -> None:
        self._on_frame = on_frame
        self._rest = ""

    def feed(self, text: str) -> None:
        """Process received text.

        Raises:
            SandboxUnavailableError: If a line is not a frame.
        """
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > _LONGEST_LINE:
            raise garbled("a line has no end")
        for line in lines:
            self._on_frame(_frame(line))


def _frame(line: str) -> Frame:
    try:
        frame = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise garbled(f"{line[:80]!r} is not JSON") from error
    if not isinstance(frame, dict):
        raise garbled(f"{line[:80]!r} is no frame")
    return cast("Frame", frame)


def data_of(frame: Frame) -> bytes:
    """Return the bytes in a frame."""
    try:
        return base64.b64decode(frame["data"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise garbled("a frame without its bytes") from error


def refusal_of(frame: Frame) -> AssayError:
    """Return the error in a frame; only errors that the contract knows."""
    kind, message = str(frame.get("error")), str(frame.get("message", ""))[:4000]
    if kind == FileTooLargeError.__name__:
        return FileTooLargeError(
            message, size_bytes=_count(frame, "size_bytes"), max_bytes=_count(frame, "max_bytes")
        )
    if kind not in _REFUSALS:
        return garbled(f"a refusal of kind {kind[:80]!r}")
    return _REFUSALS[kind](message, hint=str(frame.get("hint", ""))[:4000])


def entry_of(frame: Frame) -> FileInfo:
    """Return the workspace entry in a frame."""
    path = PurePosixPath(str(frame.get("path", "")))
    kind = frame.get("kind")
    if path.is_absolute() or ".." in path.parts or not path.parts or kind not in _KINDS:
        raise garbled("an entry that cannot be in the workspace")
    return FileInfo(
        path=path,
        kind=kind,
        size_bytes=_count(frame, "size_bytes"),
        executable=frame.get("executable") is True,
    )


def ending_of(frame: Frame, stdout: Capture, stderr: Capture) -> tuple[RawResult, bool]:
    """Return how a program ended, and whether the disk was full then."""
    told = frame.get("report")
    if not isinstance(told, dict):
        raise garbled("an end without a report")
    source = cast("Frame", told)
    report: Frame = {"cpu_s": _seconds(source, "cpu_s"), "grown_kb": _count(source, "grown_kb")}
    if "ended" in source:
        report["ended"] = _wait_status(source)
    if "start_failed" in source:
        report["start_failed"] = str(source["start_failed"])[:4000]
    killed = frame.get("killed_for")
    try:
        killed_for = None if killed is None else Reason(killed)
    except ValueError as error:
        raise garbled(f"an end for reason {str(killed)[:80]!r}") from error
    sample = Usage(
        cpu_s=_seconds(frame, "cpu_s"),
        memory_bytes=_count(frame, "memory_bytes"),
        processes=_count(frame, "processes"),
    )
    ending = RawResult(
        report=report,
        killed_for=killed_for,
        stdout=stdout,
        stderr=stderr,
        sample=sample,
        duration_s=_seconds(frame, "duration_s"),
    )
    return ending, frame.get("disk_full") is True


def _wait_status(frame: Frame) -> int:
    """Return the wait status of an exited process; a stopped process has another one."""
    status = _count(frame, "ended")
    try:
        os.waitstatus_to_exitcode(status)
    except (ValueError, OverflowError) as error:
        raise garbled(f"a wait status of {status}") from error
    return status


def _count(frame: Frame, name: str) -> int:
    value = frame.get(name, 0)
    if not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise garbled(f"{name} is {str(value)[:80]!r}")
    return value


def _seconds(frame: Frame, name: str) -> float:
    value = frame.get(name, 0.0)
    if not isinstance(value, int | float) or not 0 <= value < 1e9:  # noqa: PLR2004 - thirty years
        raise garbled(f"{name} is {str(value)[:80]!r}")
    return float(value)
