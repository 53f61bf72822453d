"""What Assay calls and others provide, with what each may raise. No state, no lifecycle."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import PurePosixPath
from typing import Protocol

from assay.contracts.conversation import ModelFacts, Reply, Request
from assay.contracts.execution import (
    ExecutionResult,
    FileInfo,
    Isolation,
    Limits,
    OutputChunk,
    Program,
)

OnOutput = Callable[[OutputChunk], None]
"""Called in the event loop with each piece of output as it arrives, in order within a stream, also
with what the result will not keep. Must not block; what it raises ends the execution."""


def ignore_output(chunk: OutputChunk) -> None:
    """Be the listener of someone who only wants the result."""
    del chunk


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

    def open_sandbox(self, limits: Limits) -> AbstractAsyncContextManager[Sandbox]:
        """Open a fresh, empty sandbox; leaving the context ends everything in it.

        Raises:
            SandboxUnavailableError: If none can be made.
        """
        ...


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
