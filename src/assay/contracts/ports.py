"""What Assay calls and others provide, with what each may raise. No state, no lifecycle."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import PurePosixPath
from typing import Any, Protocol, runtime_checkable

from assay.contracts.chat import ChatEvent, Exhibit, ExhibitSource
from assay.contracts.events import RunEvent, ScreenFinding
from assay.contracts.execution import (
    DEFAULT_SPEC,
    ExecutionResult,
    FileInfo,
    Isolation,
    Limits,
    OutputChunk,
    Program,
    SandboxSpec,
)
from assay.contracts.interpreter import CellResult
from assay.contracts.lessons import Failure, Lesson, RecallQuery, Snippet
from assay.contracts.messages import ModelFacts, Reply, Request, ToolSpec
from assay.contracts.workspace import Tree

OnOutput = Callable[[OutputChunk], None]
"""Called in the event loop with each piece of output as it arrives, in order within a stream, also
with what the result will not keep. Must not block; what it raises ends the execution."""


def ignore_output(chunk: OutputChunk) -> None:
    """Be the listener of someone who only wants the result."""
    del chunk


class Interpreter(Protocol):
    """A Python interpreter that lives in a sandbox and remembers from cell to cell.

    Each cell runs in a copy of the last good state: one that is ended from outside or crashes is
    lost, and the interpreter is not. One cell at a time; a second waits for the first.
    """

    async def run_cell(
        self, source: str, *, timeout_s: float | None = None, on_output: OnOutput = ignore_output
    ) -> CellResult:
        """Run a cell to its end. What it started ends with it; threads do not outlive it.

        An exception, a passed limit, a crash and `interrupt` are results. Cancelling the calling
        task ends the cell, and its state is rolled back.

        Raises:
            SandboxUnavailableError: If the interpreter is gone and its variables with it.
        """
        ...

    async def interrupt(self) -> None:
        """End the cell that is running now, with reason `cancelled`; without one, do nothing."""
        ...

    def branch(self) -> AbstractAsyncContextManager["Interpreter"]:
        """Open a copy of this interpreter as it is now. Each goes its own way; files are shared.

        Raises:
            SandboxUnavailableError: If the interpreter is gone.
        """
        ...


class Sandbox(Protocol):
    """One isolated workspace, and the right to run programs in it.

    Executions may overlap; they share the workspace and nothing else. Only the workspace and
    `/tmp` outlive an execution. Paths are relative to the workspace root.
    """

    @property
    def limits(self) -> Limits: ...

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        """Run a program to its end. When this returns, nothing the program started is running.

        A failing program, a passed limit and `cancel` are results, with the output so far.
        Cancelling the calling task kills the program before the cancellation goes on.

        Raises:
            SandboxUnavailableError: If the sandbox is gone; `dispatch` says whether the program
                may have run.
        """
        ...

    def open_interpreter(self) -> AbstractAsyncContextManager[Interpreter]:
        """Start an interpreter in this sandbox; leaving the context ends it.

        It counts as one execution against `processes` and `memory_mb`, for all its cells together;
        `wall_s`, `cpu_s` and `output_bytes` are for each cell. What branches use while a cell runs
        counts for it too, since they are one execution.

        Raises:
            SandboxUnavailableError: If none can be started.
        """
        ...

    async def cancel(self) -> None:
        """End every execution of this sandbox that is running now, each with reason `cancelled`."""
        ...

    async def write_file(
        self, path: PurePosixPath, content: bytes, *, executable: bool = False
    ) -> None:
        """Create or replace a file, and the directories on the way to it.

        Raises:
            PathOutsideWorkspaceError: If the path leads out of the workspace.
            NotARegularFileError: If something other than a file is in the way.
            WorkspaceFullError: If there is no room for it.
            SandboxUnavailableError: If the sandbox is gone.
        """
        ...

    async def read_file(self, path: PurePosixPath, *, max_bytes: int = 64 << 20) -> bytes:
        """Return the content of a regular file.

        Raises:
            PathOutsideWorkspaceError: If the path leads out of the workspace.
            WorkspaceFileNotFoundError: If nothing is there.
            NotARegularFileError: If it is not a regular file.
            FileTooLargeError: If it holds more than `max_bytes`.
            SandboxUnavailableError: If the sandbox is gone.
        """
        ...

    async def list_files(self, path: PurePosixPath = PurePosixPath()) -> tuple[FileInfo, ...]:
        """Return everything below a directory, sorted by path, without following symlinks.

        Raises:
            PathOutsideWorkspaceError: If the path leads out of the workspace.
            WorkspaceFileNotFoundError: If nothing is there.
            NotARegularFileError: If it is not a directory.
            SandboxUnavailableError: If the sandbox is gone.
        """
        ...

    async def make_directory(self, path: PurePosixPath) -> None:
        """Make a directory and those above it; one that exists already is fine.

        Raises:
            PathOutsideWorkspaceError: If the path leads out of the workspace.
            NotARegularFileError: If something other than a directory is in the way.
            WorkspaceFullError: If there is no room for it.
            SandboxUnavailableError: If the sandbox is gone.
        """
        ...

    async def remove_path(self, path: PurePosixPath) -> None:
        """Remove a file, a link (not what it points to) or a directory with all that is in it.

        Raises:
            PathOutsideWorkspaceError: If the path leads out of the workspace, or is its root.
            WorkspaceFileNotFoundError: If nothing is there.
            SandboxUnavailableError: If the sandbox is gone.
        """
        ...


class SandboxBackend(Protocol):
    """A way of isolating, ready to open sandboxes."""

    @property
    def name(self) -> str: ...

    @property
    def isolation(self) -> Isolation: ...

    def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AbstractAsyncContextManager[Sandbox]:
        """Open a fresh, empty sandbox; leaving the context ends everything in it.

        Raises:
            PackageError: If a package does not exist or has no wheel for this interpreter.
            UsageError: If this backend cannot give such equipment.
            SandboxUnavailableError: If none can be made.
        """
        ...


@runtime_checkable
class Watched(Protocol):
    """A backend that can be lost while it is open, because it depends on another machine."""

    @property
    def trouble(self) -> str:
        """Why no sandbox can be opened now, as of the last look; empty if nothing is wrong."""
        ...


def trouble_of(backend: SandboxBackend) -> str:
    """Return why a backend cannot be used just now, without trying it; empty if it can."""
    return backend.trouble if isinstance(backend, Watched) else ""


OnText = Callable[[str], None]
"""Called with each piece of a reply's text as it arrives. Must not block."""


def ignore_text(text: str) -> None:
    """Be the listener of someone who only wants the reply."""
    del text


class Model(Protocol):
    """Something that answers a conversation. Wrapped models are models too."""

    @property
    def name(self) -> str:
        """`provider:model`, as a person would write it on the command line."""
        ...

    @property
    def facts(self) -> ModelFacts: ...

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        """Answer once. The text told to `on_text` is the text of the reply, in order.

        A tool call with arguments that are no JSON object is part of the reply, not an error.

        Raises:
            ModelUnavailableError: If there was no answer, or it broke off; it may come later.
            ContextOverflowError: If the request is longer than the model can read.
            ModelRefusedError: If the request will never be answered as it is.
            BudgetExceededError: If a cap does not allow the call.
        """
        ...


class Tool(Protocol):
    """One thing a model may ask for, done in a sandbox."""

    @property
    def spec(self) -> ToolSpec: ...

    async def call(
        self,
        arguments: Mapping[str, Any],
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> str:
        """Do it, and say what came of it in words for the model. A failing program is an answer.

        Raises:
            ToolError: If it was asked for wrongly; the message is for the model.
            SandboxUnavailableError: If the sandbox is gone.
        """
        ...


Screen = Callable[[PurePosixPath, bytes], tuple[ScreenFinding, ...]]
"""Says what a policy has against one file of code, before it is run."""


class Journal(Protocol):
    """What a run must not lose: its events, what was paid for, and the files of each state.

    A run that is taken up again does its last step anew; what it kept under a key is there, so
    that nothing is asked of a model twice.
    """

    def emit(self, event: RunEvent, *, key: str = "") -> None:
        """Tell everyone who listens, and write the event down unless it only passes by.

        An event whose key is there already is neither told nor written again.
        """
        ...

    async def recall(self, key: str) -> Mapping[str, Any] | None:
        """Return what was kept under this key; None if nothing was."""
        ...

    async def keep(self, key: str, value: Mapping[str, Any]) -> None:
        """Write JSON down for good: when this returns, a crash does not lose it.

        Raises:
            JournalError: If it cannot be written.
        """
        ...

    async def store_tree(self, tree: Tree) -> str:
        """Keep the files of a state for good; returns their digest.

        Raises:
            JournalError: If they cannot be written.
        """
        ...

    async def load_tree(self, digest: str) -> Tree:
        """Return a state that was kept.

        Raises:
            JournalError: If it is not there, or not what it was.
        """
        ...


class ChatLog(Protocol):
    """What a conversation must not lose: what was said and done, files that went in and out."""

    def emit(self, event: ChatEvent) -> None:
        """Tell everyone who listens, and write the event down unless it only passes by.

        Raises:
            JournalError: If it cannot be written.
        """
        ...

    async def keep_file(self, path: PurePosixPath, content: bytes) -> None:
        """Keep a file that a person put into the workspace, in place of one with the same path.

        Raises:
            JournalError: If it cannot be written.
        """
        ...

    async def files(self) -> Tree:
        """Return all files that were put into the workspace."""
        ...

    async def keep_exhibit(
        self, name: str, content: bytes, *, media_type: str, source: ExhibitSource, path: str = ""
    ) -> Exhibit:
        """Keep something that came out, under this name or one like it that is still free.

        Raises:
            JournalError: If it cannot be written.
        """
        ...


class LessonStore(Protocol):
    """What earlier runs taught: lessons of their failures, and helpers that were proven.

    Its absence is an object too.
    """

    async def recall(self, cue: RecallQuery) -> tuple[Lesson, ...]:
        """Return the lessons that fit the moment, the best first; few, and none by force."""
        ...

    async def learn(self, failure: Failure) -> None:
        """Write a failure down, once the independent check has spoken."""
        ...

    async def offer(self, cue: RecallQuery) -> tuple[Snippet, ...]:
        """Return helpers that may serve the goal, the best first; few, and none by force.

        They were right once. Whoever uses one tests it first, and says by `tested` how it went.
        """
        ...

    async def keep(self, skill: Snippet) -> None:
        """Keep a helper that passed its test, and without which the test failed.

        One that holds what looks like a secret, or is too long, is not kept.
        """
        ...

    async def tested(self, skill: str, *, passed: bool) -> None:
        """Say of a helper, by id, how its test ended just now; one that fails retires."""
        ...

    async def judge(self, ids: tuple[str, ...], *, helped: bool) -> None:
        """Say of lessons and helpers that were shown whether what came after them got further."""
        ...
