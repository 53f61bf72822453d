"""E2B sandbox: runs programs and transfers files through Assay's code in a virtual machine.

The answers of the virtual machine are frames; every value in them is checked.
"""

import asyncio
import base64
import binascii
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

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
from assay.contracts.execution import (
    ExecutionResult,
    FileInfo,
    Isolation,
    Limits,
    OutputChunk,
    Program,
    PythonCode,
    Reason,
    Timings,
    WorkspaceChanges,
)
from assay.contracts.ports import Interpreter, OnOutput, ignore_output
from assay.contracts.workspace import WorkspaceLayer
from assay.sandbox.e2b.vm import Machine, act_command, explain, gone
from assay.sandbox.layer_copy import compare_with_layer
from assay.sandbox.native.host.supervisor import RawResult, build_result
from assay.sandbox.native.host.usage_monitor import Usage
from assay.sandbox.native.kernel.cgroups import GroupUsage
from assay.sandbox.output import Capture

if TYPE_CHECKING:
    from e2b import AsyncCommandHandle


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


_INLINE: Final = 8_000
"""The limits of data on a command line; longer data is uploaded first."""
_LONG: Final = {"stdin", "source", "content"}
_AT_ONCE: Final = 8
_GRACE_S: Final = 20.0
"""How much longer than its limit a program may take before Assay ends the whole machine."""
_ENDING_S: Final = 15.0
_ANSWER_S: Final = 80.0
"""Timeout of file operations."""
_MOST_ENTRIES: Final = 500_000


class E2BSandbox:
    """See `assay.contracts.ports.Sandbox`."""

    def __init__(
        self, machine: Machine, limits: Limits, *, layer: WorkspaceLayer | None = None
    ) -> None:
        self.limits = limits
        self._layer = layer
        self._machine = machine
        self._turns = anyio.Semaphore(_AT_ONCE)
        self._running: dict[str, _Exchange] = {}
        self._interpreters: list[Interpreter] = []
        self._open = True

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        limits = self._limits_for(program)
        arrived = time.perf_counter()
        async with self._turns:
            served = time.perf_counter()
            self._check_open()
            name = secrets.token_hex(8)
            request = self._machine.places() | _request_of(program, limits)
            request["cancel"] = self._machine.in_state(f"cancel-{name}")
            execution = _Execution(limits, on_output)
            conversation = await self._begin("run", request, execution.hear)
            self._running[name] = conversation
            try:
                await self._await_end(name, conversation, limits)
            finally:
                self._running.pop(name, None)
                conversation.abandon()
        prepared = conversation.began_at or served
        timings = Timings(queue_s=served - arrived, prepare_s=prepared - served, run_s=0.0)
        return execution.conclude(timings)

    async def _await_end(self, name: str, conversation: "_Exchange", limits: Limits) -> None:
        try:
            await conversation.begun()
            with anyio.fail_after(limits.wall_s + _GRACE_S):
                await conversation.over()
        except TimeoutError:
            await self._machine.end()
            raise SandboxUnavailableError(
                "the sandbox did not end a program in time, and was ended itself",
                dispatch="outcome_unknown",
            ) from None
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._end_now(name, conversation)
            raise
        if conversation.failure is None and conversation.told_end:
            return
        if not self._open:
            raise gone("outcome_unknown") from conversation.failure
        if conversation.failure is not None and conversation.began_at is None:
            raise conversation.failure
        if conversation.failure is not None and conversation.of_ours:
            # The listener failed, or a frame was invalid: end the program before raising.
            with anyio.CancelScope(shield=True):
                await self._end_now(name, conversation)
            raise conversation.failure
        raise await self._lost(conversation.failure) from conversation.failure

    async def _end_now(self, name: str, conversation: "_Exchange") -> None:
        """End one program and wait until it has ended; otherwise end its machine."""
        conversation.go_on_unheard()
        with anyio.move_on_after(_ENDING_S), suppress(Exception):
            await self._machine.put(self._machine.in_state(f"cancel-{name}"), b"")
            await conversation.over()
            if conversation.told_end:
                return
        await self._machine.end()

    async def _lost(self, failure: BaseException | None) -> AssayError:
        """Explain why the end of a program is unknown, after ending its remaining processes."""
        running = await self._machine.is_running()
        with anyio.CancelScope(shield=True):
            await self._machine.end()
        if running and isinstance(failure, Exception):
            return explain(failure, dispatch="outcome_unknown", address=self._machine.address)
        return gone("outcome_unknown")

    def _limits_for(self, program: Program) -> Limits:
        if program.timeout_s is None or program.timeout_s >= self.limits.wall_s:
            return self.limits
        return replace(self.limits, wall_s=program.timeout_s)

    async def _begin(self, act: str, request: Frame, hear: Any) -> "_Exchange":
        for name in _LONG & request.keys():
            content: bytes = request[name]
            if len(content) <= _INLINE:
                request[name] = base64.b64encode(content).decode()
                continue
            path = self._machine.in_state(f"in-{secrets.token_hex(8)}")
            await self._machine.put(path, content)
            request[name] = f"@{path}"
        packed = base64.b64encode(json.dumps(request).encode()).decode()
        command = act_command(
            python=self._machine.python, state=self._machine.state, act=act, request=packed
        )
        conversation = _Exchange(hear)
        conversation.start(self._machine.start(command, conversation.feed))
        return conversation

    async def _ask(self, act: str, **words: Any) -> list[Frame]:
        """Run a file operation and return the frames of its answer."""
        self._check_open()
        frames: list[Frame] = []
        request = self._machine.places() | {"disk_mb": self.limits.disk_mb} | words
        conversation = await self._begin(act, request, frames.append)
        try:
            with anyio.fail_after(_ANSWER_S):
                await conversation.over()
        except TimeoutError:
            raise SandboxUnavailableError(
                "the E2B sandbox does not answer",
                dispatch="never_started",
                hint="try again, in a new sandbox",
            ) from None
        finally:
            conversation.abandon()
        if isinstance(conversation.failure, Exception):
            raise explain(
                conversation.failure, dispatch="never_started", address=self._machine.address
            ) from conversation.failure
        if not frames:
            raise gone("never_started")
        if frames[-1].get("frame") == "refused":
            raise refusal_of(frames[-1])
        return frames[:-1]

    def _check_open(self) -> None:
        if not self._open:
            raise SandboxUnavailableError("the sandbox is closed", dispatch="never_started")

    @asynccontextmanager
    async def open_interpreter(self) -> AsyncGenerator[Interpreter]:
        self._check_open()
        from assay.sandbox.e2b.interpreter import open_interpreter

        async with open_interpreter(self._machine, self.limits) as interpreter:
            self._interpreters.append(interpreter)
            try:
                yield interpreter
            finally:
                self._interpreters.remove(interpreter)

    async def cancel(self) -> None:
        for interpreter in tuple(self._interpreters):
            await interpreter.interrupt()
        for name in tuple(self._running):
            await self._machine.put(self._machine.in_state(f"cancel-{name}"), b"")

    async def close(self) -> None:
        """End the machine with everything that runs in it."""
        self._open = False
        await self._machine.end()
        for conversation in tuple(self._running.values()):
            conversation.abandon()

    async def write_file(
        self, path: PurePosixPath, content: bytes, *, executable: bool = False
    ) -> None:
        self._check_open()
        if len(content) > self.limits.disk_mb << 20:
            raise WorkspaceFullError(f"{str(path)!r}: no space left in the workspace")
        await self._ask("write", path=str(path), content=content, executable=executable)

    async def read_file(self, path: PurePosixPath, *, max_bytes: int = 64 << 20) -> bytes:
        frames = await self._ask("read", path=str(path), max_bytes=max_bytes)
        return b"".join(map(data_of, frames))[:max_bytes]

    async def list_files(self, path: PurePosixPath = PurePosixPath()) -> tuple[FileInfo, ...]:
        frames = await self._ask("list", path=str(path))
        return tuple(map(entry_of, frames[:_MOST_ENTRIES]))

    async def make_directory(self, path: PurePosixPath) -> None:
        await self._ask("make", path=str(path))

    async def remove_path(self, path: PurePosixPath) -> None:
        await self._ask("remove", path=str(path))

    async def changes(self) -> WorkspaceChanges:
        return await compare_with_layer(self, self._layer)


def _request_of(program: Program, limits: Limits) -> Frame:
    request: Frame = {
        "cwd": str(program.cwd),
        "env": dict(program.env),
        "limits": asdict(limits),
        "stdin": program.stdin,
    }
    if isinstance(program, PythonCode):
        argv = [program.filename, *program.args]
        return request | {"argv": argv, "source": program.source}
    return request | {"argv": list(program.argv)}


class _Exchange:
    """One command of Assay in the machine, from its first frame to its end."""

    def __init__(self, hear: Any) -> None:
        self._hear = hear
        self._reader = FrameReader(self._take)
        self._task: asyncio.Future[None] | None = None
        self._begun = asyncio.Event()
        self._over = asyncio.Event()
        self._heard = True
        self._abandoned = False
        self.failure: BaseException | None = None
        self.of_ours = False
        self.told_end = False
        self.began_at: float | None = None

    def start(self, starting: "Coroutine[Any, Any, AsyncCommandHandle[None]]") -> None:
        # A separate future: cancelling the wait must not stop the listener, nor leave a possibly
        # started command that cannot be stopped.
        self._task = asyncio.ensure_future(self._listen(starting))
        self._task.add_done_callback(self._finish)

    async def _listen(self, starting: "Coroutine[Any, Any, AsyncCommandHandle[None]]") -> None:
        handle = await starting
        self.began_at = time.perf_counter()
        self._begun.set()
        if self._abandoned:
            await handle.disconnect()
        else:
            await handle.wait()

    def _finish(self, task: "asyncio.Future[None]") -> None:
        # Read the exception, so that asyncio does not report an abandoned command.
        _failure_of(task)
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        self._begun.set()
        self._over.set()

    def feed(self, text: str) -> None:
        if self.of_ours and self._heard:
            return
        try:
            self._reader.feed(text)
        except BaseException as error:  # noqa: BLE001 - for the caller, not for the SDK
            if self.failure is None:
                self.failure, self.of_ours = error, True
            self._over.set()

    def _take(self, frame: Frame) -> None:
        if frame.get("frame") == "end":
            self.told_end = True
        if self._heard:
            self._hear(frame)

    def go_on_unheard(self) -> None:
        """Wait for the end only; no listener receives the frames any more."""
        self._heard = False
        if self._task is None or not self._task.done():
            self._over.clear()

    async def begun(self) -> None:
        """Wait until the command has started or failed to; `began_at` tells which."""
        await self._begun.wait()

    async def over(self) -> None:
        """Wait until the command has ended or failed; `failure` has the cause."""
        await self._over.wait()
        if self.failure is None and self._task is not None and self._task.done():
            self.failure = _failure_of(self._task)

    def abandon(self) -> None:
        """Stop listening; the SDK cancels a start that is in progress."""
        self._abandoned = True
        if self._task is not None and self.began_at is not None:
            self._task.cancel()
        else:
            self._stop_waiting()


def _failure_of(task: "asyncio.Future[Any]") -> BaseException | None:
    if task.cancelled():
        return gone("outcome_unknown")
    return task.exception()


class _Execution:
    """The output of one program so far, and how it ended."""

    def __init__(self, limits: Limits, on_output: OnOutput) -> None:
        self._limits = limits
        self._on_output = on_output
        self._stdout = Capture(limits.output_bytes)
        self._stderr = Capture(limits.output_bytes)
        self._end: Frame | None = None

    def hear(self, frame: Frame) -> None:
        match frame.get("frame"):
            case "stdout":
                data = data_of(frame)
                self._stdout.add(data)
                self._on_output(OutputChunk(stream="stdout", data=data))
            case "stderr":
                data = data_of(frame)
                self._stderr.add(data)
                self._on_output(OutputChunk(stream="stderr", data=data))
            case "end":
                self._end = frame
            case _:
                pass

    def conclude(self, timings: Timings) -> ExecutionResult:
        """Return the result.

        Raises:
            SandboxUnavailableError: If its end was never reported.
        """
        if self._end is None:
            raise gone("outcome_unknown")
        ending, disk_full = ending_of(self._end, self._stdout, self._stderr)
        result = build_result(
            ending,
            GroupUsage(),
            self._limits,
            disk_full=disk_full,
            timings=replace(timings, run_s=ending.duration_s),
            isolation=Isolation.MACHINE,
        )
        return replace(result, backend="e2b")
