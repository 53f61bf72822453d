"""One branch of an interpreter on the trusted side: its requests, pipes, running cell and answers.

Requests go to the kernel manager in order, without waiting. The supervisor trusts only the kernel
manager's reports and the Linux kernel's counters; rich output is untrusted and decoded here. Every
wait has a timeout: a branch that does not answer in time is killed and loses its state.
"""

import json
import math
import os
import re
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import anyio

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import CellError, Limits, OutputChunk, Reason, RichOutput
from assay.contracts.ports import OnOutput
from assay.sandbox.native.guest import messages
from assay.sandbox.native.guest.display import (
    HEADER_LENGTH,
    LARGEST_CELL,
    LARGEST_FORM,
    LARGEST_TEXT,
    MOST_SHOWN,
)
from assay.sandbox.native.host.jail import Descriptor, Jail, close_all
from assay.sandbox.native.host.supervisor import Pace, RawResult, passed_limit
from assay.sandbox.native.host.usage_monitor import Usage, Watch
from assay.sandbox.native.kernel.open_files import TOO_FEW_HINT
from assay.sandbox.output import Capture


class Orders:
    """The send queue to one kernel manager. If the kernel manager is gone, requests are dropped."""

    def __init__(self, go: Descriptor) -> None:
        self._end = socket.socket(fileno=os.dup(go.number))
        self._end.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._waiting: deque[tuple[memoryview, list[int]]] = deque()

    @property
    def pending(self) -> bool:
        return bool(self._waiting)

    def put(self, order: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send as much as fits now; `send_more` sends the rest.

        Descriptors are copied, so that the caller may close them, and their numbers may be reused,
        while the request still waits.

        Raises:
            OSError: If there are too few descriptors for the copies.
        """
        self._waiting.append((memoryview(messages.encode(order)), _copies(descriptors)))
        self.send_more()

    def send_more(self) -> None:
        """Send the rest, as far as it fits."""
        while self._waiting:
            data, copies = self._waiting[0]
            try:
                sent = socket.send_fds(self._end, [data], copies)
            except BlockingIOError:
                return
            except OSError:
                self._forget()
                return
            self._waiting.popleft()
            # Descriptors travel with the first byte.
            close_all(copies)
            if sent < len(data):
                self._waiting.appendleft((data[sent:], []))

    def _forget(self) -> None:
        for _, copies in self._waiting:
            close_all(copies)
        self._waiting.clear()

    def close(self) -> None:
        self._forget()
        self._end.close()


def _copies(descriptors: Sequence[int]) -> list[int]:
    copies: list[int] = []
    try:
        for descriptor in descriptors:
            copies.append(os.dup(descriptor))  # noqa: PERF401 - closed if one of them fails
    except OSError:
        close_all(copies)
        raise
    return copies


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


Stream = Literal["stdout", "stderr"]
Report = dict[str, Any]

_FIRST_LOOK_S: Final = 0.01
_LOOK_EVERY_S: Final = 0.025
_SEND_AGAIN_S: Final = 0.002
_OBEY_WITHIN_S: Final = 15.0
_LARGEST_REPORT: Final = 4096


class BranchPipes:
    """The pipes of one branch."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.gone = ""
        """Why the other end is gone; empty while it is there."""
        self._reported = b""
        ends: list[tuple[int, int]] = []
        try:
            for _ in range(4):
                ends.append(os.pipe2(os.O_CLOEXEC))  # noqa: PERF401 - closed if one of them fails
            self.events = select.epoll()
        except OSError as error:
            close_all(end for pair in ends for end in pair)
            raise SandboxUnavailableError(
                f"out of descriptors: {error}", dispatch="never_started", hint=TOO_FEW_HINT
            ) from error
        self.theirs: tuple[int, ...] = tuple(writing for _, writing in ends)
        ours = tuple(Descriptor(reading) for reading, _ in ends)
        self.stdout, self.stderr, self.answers, self.reports = ours
        for descriptor in ours:
            self.events.register(descriptor.number, select.EPOLLIN)

    def hand_over(self) -> None:
        """Close the writing end of the reports after it was sent to the kernel manager.

        That pipe then ends with the kernel manager. The others stay open, so a cell cannot end
        them.
        """
        os.close(self.theirs[-1])
        self.theirs = self.theirs[:-1]

    async def report(self) -> Report:
        """Wait for one report of the kernel manager, up to a timeout."""
        with anyio.move_on_after(_OBEY_WITHIN_S):
            while (found := self.read_report()) is None:
                await anyio.wait_readable(self.reports.number)
            return found
        return {"gone": "it does not answer"}

    def read_report(self) -> Report | None:
        """Return the next complete report, or None. An unreadable report becomes a final one."""
        if b"\n" not in self._reported:
            try:
                piece = self.reports.read_some()
            except BlockingIOError:
                return None
            if not piece:
                return {"gone": "its processes are dead", "keeper": "dead"}
            self._reported += piece
        line, end, rest = self._reported.partition(b"\n")
        if not end:
            too_long = len(line) > _LARGEST_REPORT
            return {"gone": "it does not speak the protocol"} if too_long else None
        self._reported = rest
        try:
            report = json.loads(line)
        except ValueError:
            return {"gone": "it does not speak the protocol"}
        return report

    def close(self) -> None:
        close_all(self.theirs)
        self.theirs = ()
        self.events.close()
        for descriptor in (self.stdout, self.stderr, self.answers, self.reports):
            descriptor.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEnding:
    """What is known about a cell after all its processes are dead."""

    ending: RawResult
    kept: bool
    answers: bytes


class CellRun:
    """One running cell. Call `follow` once; call `kill` at any time."""

    def __init__(
        self, lineage: BranchPipes, orders: Orders, cell: Jail, limits: Limits, watch: Watch
    ) -> None:
        self._lineage = lineage
        self._orders = orders
        self._cell = cell
        self._limits = limits
        self._watch = watch
        self._sample = Usage()
        self._killed_for: Reason | None = None
        self._report: Report | None = None
        self._answers = bytearray()
        self._captures: dict[Stream, Capture] = {
            "stdout": Capture(limits.output_bytes),
            "stderr": Capture(limits.output_bytes),
        }
        read = (lineage.stdout, lineage.stderr, lineage.answers)
        self._paces = {descriptor.number: Pace() for descriptor in read}
        self._resume: dict[int, float] = {}
        """When to resume reading each paused descriptor."""
        self._deadline = self._next_look = math.inf

    def kill(self, reason: Reason) -> None:
        """Ask the kernel manager to end the cell; if it does not do so in time, kill the jail."""
        if self._killed_for is not None or self._report is not None:
            return
        self._killed_for = reason
        self._deadline = time.monotonic() + _OBEY_WITHIN_S
        self._orders.put({"do": "end", "line": self._lineage.number})

    async def follow(self, number: int, source: str, on_output: OnOutput) -> CellEnding:
        """Send the cell to the kernel manager and wait until none of its processes remain.

        Raises:
            SandboxUnavailableError: If the branch is gone.
        """
        started = time.perf_counter()
        line = self._lineage.number
        order = {"do": "run", "line": line, "number": number, "source": source}
        self._orders.put({**order, "ask": not self._watch.enforcing})
        self._deadline = time.monotonic() + self._limits.wall_s
        self._next_look = time.monotonic() + _FIRST_LOOK_S
        try:
            await self._await_report(on_output)
        except BaseException:
            self.kill(Reason.CANCELLED)
            with anyio.CancelScope(shield=True):
                await self._await_report(_hear_nothing)
            self._note_loss()
            raise
        self._note_loss()
        report = self._report or {}
        kept = report.get("kept") is True
        return CellEnding(
            ending=RawResult(
                report=_translate(report),
                # A kept cell had finished before it could be killed.
                killed_for=None if kept else self._killed_for,
                stdout=self._captures["stdout"],
                stderr=self._captures["stderr"],
                sample=self._sample,
                duration_s=time.perf_counter() - started,
            ),
            kept=kept,
            answers=bytes(self._answers),
        )

    def _note_loss(self) -> None:
        report = self._report or {}
        if "gone" in report:
            self._lineage.gone = str(report["gone"])[:300]
            if report.get("keeper") == "dead":
                # No process is left that would end the interpreter's processes.
                self._cell.kill()

    async def _await_report(self, on_output: OnOutput) -> None:
        lineage = self._lineage
        while self._report is None:
            with anyio.move_on_after(self._patience()):
                await anyio.wait_readable(lineage.events.fileno())
            self._orders.send_more()
            for number, _ in lineage.events.poll(0):
                self._leave_alone_after(number, self._take(number, on_output))
            self._resume_reading(time.monotonic())
            self._look_after()
        self._resume_reading(math.inf)
        # No writer is left, so all remaining output is in the pipes already.
        for descriptor in (lineage.stdout, lineage.stderr, lineage.answers):
            with suppress(BlockingIOError):
                while self._take(descriptor.number, on_output):
                    pass
        self._look()

    def _leave_alone_after(self, number: int, size: int) -> None:
        """Pause reading after many small pieces, so that the next piece is larger."""
        if size:
            now = time.monotonic()
            pause_s = self._paces[number].pause_s(size, now)
            if pause_s > 0:
                self._lineage.events.modify(number, 0)
                self._resume[number] = now + pause_s

    def _resume_reading(self, now: float) -> None:
        for number in [number for number, due in self._resume.items() if due <= now]:
            del self._resume[number]
            self._lineage.events.modify(number, select.EPOLLIN)

    def _take(self, number: int, on_output: OnOutput) -> int:
        """Read what is available and return its size; 0 if there was none, or for a report."""
        lineage = self._lineage
        if number == lineage.reports.number:
            # Read all of them: a report that was read together with another causes no new event.
            while self._report is None and (report := lineage.read_report()) is not None:
                self._hear(report)
            return 0
        if number == lineage.answers.number:
            data = lineage.answers.read_some()
            if len(self._answers) <= MOST_BYTES:
                self._answers += data
            else:
                self.kill(Reason.OUTPUT_LIMIT)
            return len(data)
        stream: Stream = "stdout" if number == lineage.stdout.number else "stderr"
        source = lineage.stdout if stream == "stdout" else lineage.stderr
        data = source.read_some()
        capture = self._captures[stream]
        capture.add(data)
        if data:
            on_output(OutputChunk(stream=stream, data=data))
        if capture.flooded:
            self.kill(Reason.OUTPUT_LIMIT)
        return len(data)

    def _hear(self, report: Report) -> None:
        if report != {"done": True}:
            self._report = report
            return
        # The cell is stopped, so a limit that it exceeded unseen is found before it is kept.
        self._look()
        reason = passed_limit(self._sample, self._limits)
        if reason is not None:
            self.kill(reason)
        elif self._killed_for is None:
            self._orders.put({"do": "keep", "line": self._lineage.number})

    def _patience(self) -> float:
        if self._orders.pending:
            return _SEND_AGAIN_S
        next_look = math.inf if self._killed_for is not None else self._next_look
        due = min(next_look, self._deadline, *self._resume.values())
        return max(0.0, due - time.monotonic())

    def _look_after(self) -> None:
        now = time.monotonic()
        if self._report is not None or now < min(self._next_look, self._deadline):
            return
        if now >= self._deadline:
            if self._killed_for is None:
                self.kill(Reason.TIMED_OUT)
            else:
                self._cell.kill()
                self._report = {"gone": "it does not answer"}
        elif self._killed_for is None:
            self._next_look = now + _LOOK_EVERY_S
            self._look()
            reason = passed_limit(self._sample, self._limits)
            if reason is not None:
                self.kill(reason)

    def _look(self) -> None:
        self._sample = self._watch.look()


def _hear_nothing(chunk: OutputChunk) -> None:
    del chunk


def _translate(report: Report) -> Report:
    """Translate a kernel manager's report into the format of PID 1, which `conclude` reads."""
    if "refused" in report:
        why = os.strerror(int(report["refused"]))
        return {"start_failed": f"no process for the cell: {why}", "ended": 126 << 8}
    ended = report.get("ended")
    return {"ended": ended} if isinstance(ended, int) else {}
