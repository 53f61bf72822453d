"""Interfaces that Assay calls and others implement, with the errors of each."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import PurePosixPath
from typing import Any, Protocol, runtime_checkable

from assay.contracts.chat import ArtifactSource, ChatEvent, StoredArtifact
from assay.contracts.events import RunEvent, ScreenFinding
from assay.contracts.execution import (
    DEFAULT_SPEC,
    CellResult,
    ExecutionResult,
    FileInfo,
    Isolation,
    Limits,
    OutputChunk,
    Program,
    SandboxSpec,
    WorkspaceChanges,
)
from assay.contracts.lessons import Failure, Lesson, RecallQuery, Snippet
from assay.contracts.messages import ModelInfo, Reply, Request, ToolSpec
from assay.contracts.workspace import Tree

OnOutput = Callable[[OutputChunk], None]
"""Callback for each piece of output, in the event loop and in order within a stream, also for
output that the result drops. Must not block; an exception from it ends the execution."""


def ignore_output(chunk: OutputChunk) -> None:
    """Discard output, for callers that only need the result."""
    del chunk


class Interpreter(Protocol):
    """A Python interpreter in a sandbox that keeps its state from cell to cell.

    Each cell runs in a copy of the last good state. A cell that is killed or crashes is lost, but
    the interpreter is not. One cell runs at a time; a second one waits.
    """

    async def run_cell(
        self, source: str, *, timeout_s: float | None = None, on_output: OnOutput = ignore_output
    ) -> CellResult:
        """Run a cell to its end. Its processes end with it, and threads do not outlive it.

        An exception, a reached limit, a crash and `interrupt` are results. Cancelling the calling
        task kills the cell, and its state is rolled back.

        Raises:
            SandboxUnavailableError: If the interpreter is lost, with its variables.
        """
        ...

    async def interrupt(self) -> None:
        """End the running cell with reason `cancelled`; without one, do nothing."""
        ...

    def branch(self) -> AbstractAsyncContextManager["Interpreter"]:
        """Open a copy of this interpreter's state. Both continue independently; they share files.

        Raises:
            SandboxUnavailableError: If the interpreter is lost.
        """
        ...


class Sandbox(Protocol):
    """One isolated workspace in which programs can run.

    Executions may overlap; they share only the workspace. Only the workspace and `/tmp` outlive an
    execution. Paths are relative to the workspace root.
    """

    @property
    def limits(self) -> Limits: ...

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        """Run a program to its end. On return, no process of the program is running.

        A failing program, a reached limit and `cancel` are results, with the output so far.
        Cancelling the calling task kills the program before the cancellation propagates.

        Raises:
            SandboxUnavailableError: If the sandbox is lost; `dispatch` says whether the program
                may have run.
        """
        ...

    def open_interpreter(self) -> AbstractAsyncContextManager[Interpreter]:
        """Start an interpreter in this sandbox; leaving the context ends it.

        It counts as one execution against `processes` and `memory_mb`, for all its cells together;
        `wall_s`, `cpu_s` and `output_bytes` apply to each cell. Resources that branches use during
        a cell count for it too, since they are one execution.

        Raises:
            SandboxUnavailableError: If the interpreter cannot start.
        """
        ...

    async def cancel(self) -> None:
        """End every running execution of this sandbox with reason `cancelled`."""
        ...

    async def write_file(
        self, path: PurePosixPath, content: bytes, *, executable: bool = False
    ) -> None:
        """Create or replace a file, and create its parent directories.

        Raises:
            PathOutsideWorkspaceError: If the path leads out of the workspace.
            NotARegularFileError: If something other than a file is in the way.
            WorkspaceFullError: If there is no room for it.
            SandboxUnavailableError: If the sandbox is lost.
        """
        ...

    async def read_file(self, path: PurePosixPath, *, max_bytes: int = 64 << 20) -> bytes:
        """Return the content of a regular file.

        Raises:
            PathOutsideWorkspaceError: If the path leads out of the workspace.
            WorkspaceFileNotFoundError: If nothing is there.
            NotARegularFileError: If it is not a regular file.
            FileTooLargeError: If it holds more than `max_bytes`.
            SandboxUnavailableError: If the sandbox is lost.
        """
        ...

    async def list_files(self, path: PurePosixPath = PurePosixPath()) -> tuple[FileInfo, ...]:
        """Return everything below a directory, sorted by path, without following symlinks.

        Raises:
            PathOutsideWorkspaceError: If the path leads out of the workspace.
            WorkspaceFileNotFoundError: If nothing is there.
            NotARegularFileError: If it is not a directory.
            SandboxUnavailableError: If the sandbox is lost.
        """
        ...

    async def make_directory(self, path: PurePosixPath) -> None:
        """Create a directory and its parents; an existing one is no error.

        Raises:
            PathOutsideWorkspaceError: If the path leads out of the workspace.
            NotARegularFileError: If something other than a directory is in the way.
            WorkspaceFullError: If there is no room for it.
            SandboxUnavailableError: If the sandbox is lost.
        """
        ...

    async def remove_path(self, path: PurePosixPath) -> None:
        """Remove a file, a link (not its target) or a directory with its content.

        Raises:
            PathOutsideWorkspaceError: If the path leads out of the workspace, or is its root.
            WorkspaceFileNotFoundError: If nothing is there.
            SandboxUnavailableError: If the sandbox is lost.
        """
        ...

    async def changes(self) -> WorkspaceChanges:
        """Return what differs from the layer of the sandbox, or from an empty workspace without.

        Includes files that tools left behind. While a program runs, each path is as of some moment
        during the call.

        Raises:
            WorkspaceError: If the workspace cannot be read, as a program made it unreadable.
            SandboxUnavailableError: If the sandbox is lost.
        """
        ...


@runtime_checkable
class SandboxBackend(Protocol):
    """A backend that isolates programs and opens sandboxes."""

    @property
    def name(self) -> str: ...

    @property
    def isolation(self) -> Isolation: ...

    def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AbstractAsyncContextManager[Sandbox]:
        """Open a fresh sandbox; leaving the context ends everything in it.

        Its workspace is empty, or has the files of the layer in the spec. A directory of a layer
        may refuse `rename`, as on another file system; `mv` and `shutil.move` copy it then.

        Raises:
            PackageError: If a package does not exist or has no wheel for this interpreter.
            UsageError: If this backend does not support the spec, or cannot read the layer.
            WorkspaceFullError: If the layer has to be copied, and the sandbox has no room for it.
            SandboxUnavailableError: If none can be made.
        """
        ...


@runtime_checkable
class Watched(Protocol):
    """A backend that can fail while it is open, because it depends on another machine."""

    @property
    def trouble(self) -> str:
        """Reason why no sandbox can be opened, as of the last check; empty if all is well."""
        ...


def trouble_of(backend: SandboxBackend) -> str:
    """Return why a backend cannot be used now, without a check; empty if it can."""
    return backend.trouble if isinstance(backend, Watched) else ""


OnText = Callable[[str], None]
"""Callback that receives each piece of a reply's text as it arrives. Must not block."""


def ignore_text(text: str) -> None:
    """Discard text, for callers that only need the reply."""
    del text


class Model(Protocol):
    """A language model that answers requests. Wrappers around models implement it too."""

    @property
    def name(self) -> str:
        """`provider:model`, as on the command line."""
        ...

    @property
    def info(self) -> ModelInfo: ...

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        """Answer one request. `on_text` receives the text of the reply, in order.

        A tool call whose arguments are no JSON object is part of the reply, not an error.

        Raises:
            ModelUnavailableError: If there was no answer, or it broke off; a retry may help.
            ContextOverflowError: If the request is longer than the model can read.
            ModelRefusedError: If the model will never answer this request.
            BudgetExceededError: If a cap does not allow the call.
        """
        ...


class Tool(Protocol):
    """One tool that a model may call; it acts in a sandbox."""

    @property
    def spec(self) -> ToolSpec: ...

    async def call(
        self,
        arguments: Mapping[str, Any],
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> str:
        """Run the tool and return its result as text for the model. A failing program is a result.

        Raises:
            ToolError: If the call is invalid; the message is for the model.
            SandboxUnavailableError: If the sandbox is lost.
        """
        ...


Screen = Callable[[PurePosixPath, bytes], tuple[ScreenFinding, ...]]
"""Callback that returns the policy violations in one code file before it runs."""


class Journal(Protocol):
    """Durable state of a run: its events, paid replies, and the files of each state.

    A resumed run repeats its last step. Values that it stored under a key are still there, so that
    Assay never sends the same request to a model twice.
    """

    def emit(self, event: RunEvent, *, key: str = "") -> None:
        """Send an event to all listeners, and store it unless it is transient.

        An event whose key exists already is neither sent nor stored again.
        """
        ...

    async def recall(self, key: str) -> Mapping[str, Any] | None:
        """Return the value that was stored under this key; None without one."""
        ...

    async def keep(self, key: str, value: Mapping[str, Any]) -> None:
        """Store JSON durably: after the return, a crash does not lose it.

        Raises:
            JournalError: If it cannot be written.
        """
        ...

    async def store_tree(self, tree: Tree) -> str:
        """Store the files of a state durably; return their digest.

        Raises:
            JournalError: If they cannot be written.
        """
        ...

    async def load_tree(self, digest: str) -> Tree:
        """Return a stored state.

        Raises:
            JournalError: If it is missing, or its digest differs.
        """
        ...


class ChatLog(Protocol):
    """Durable state of a chat session: its events, and the files that went in and out."""

    def emit(self, event: ChatEvent) -> None:
        """Send an event to all listeners, and store it unless it is transient.

        Raises:
            JournalError: If it cannot be written.
        """
        ...

    async def settle(self) -> None:
        """Make all events durable.

        Raises:
            JournalError: If that cannot be done.
        """
        ...

    async def keep_file(self, path: PurePosixPath, content: bytes) -> None:
        """Store a file that the user added to the workspace; replace one with the same path.

        Raises:
            JournalError: If it cannot be written.
        """
        ...

    async def files(self) -> Tree:
        """Return all files that the user added to the workspace."""
        ...

    async def keep_exhibit(
        self, name: str, content: bytes, *, media_type: str, source: ArtifactSource, path: str = ""
    ) -> StoredArtifact:
        """Store an artifact under this name, or a similar name that is free.

        Raises:
            JournalError: If it cannot be written.
        """
        ...


class LessonStore(Protocol):
    """Failure memory: lessons of earlier failures, and snippets from accepted runs.

    A null implementation stands for "no memory".
    """

    async def recall(self, query: RecallQuery) -> tuple[Lesson, ...]:
        """Return the few lessons that fit the query, the best first; possibly none."""
        ...

    async def learn(self, failure: Failure) -> None:
        """Store a failure after the verdict of the independent check."""
        ...

    async def offer(self, query: RecallQuery) -> tuple[Snippet, ...]:
        """Return the few snippets that may serve the goal, the best first; possibly none.

        Each passed its test in an earlier run. The caller tests a snippet before use, and reports
        the result with `tested`.
        """
        ...

    async def keep(self, snippet: Snippet) -> None:
        """Store a snippet that passed its test, which fails without the snippet.

        A snippet that contains a probable secret, or is too long, is not stored.
        """
        ...

    async def tested(self, snippet: str, *, passed: bool) -> None:
        """Record the latest test result of a snippet; a failure retires it."""
        ...

    async def judge(self, ids: tuple[str, ...], *, helped: bool) -> None:
        """Record whether the attempts after these lessons and snippets made progress."""
        ...
