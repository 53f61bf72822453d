"""The whole exception tree. Who must act decides the family.

    AssayError
    ├── UsageError                     the request is wrong: whoever asked changes it
    │   └── PolicyError                settings forbid it: change the request or the settings
    ├── MissingExtraError              an optional part is not installed: install it
    ├── IsolationUnavailableError      this machine cannot isolate as asked: change either
    ├── PackageError                   a package cannot be had: whoever asked names another
    ├── SandboxUnavailableError        the sandbox is gone: open another one
    ├── ModelUnavailableError          no answer, perhaps later: wait and ask again
    ├── ModelRefusedError              the model or its provider says no: change the request
    │   └── ContextOverflowError       more than the model can read: send less
    ├── BudgetExceededError            the money, tokens or calls are used up
    ├── ToolError                      a tool was asked for wrongly: the model asks again
    ├── JournalError                   a run's record cannot be written or read: a person looks
    └── WorkspaceError                 a file operation was refused; the sandbox lives on
        ├── PathOutsideWorkspaceError
        ├── WorkspaceFileNotFoundError
        ├── NotARegularFileError
        ├── FileTooLargeError
        └── WorkspaceFullError

A failing program, a passed time limit or a killed process is not here: it is a value
(`assay.contracts.execution.ExecutionResult`).
"""

from enum import IntEnum
from typing import Literal

from assay.contracts.distribution import how_to_install

Dispatch = Literal["never_started", "outcome_unknown"]
"""What is known of a program whose sandbox was lost: safe to retry, or perhaps done already."""


class ExitCode(IntEnum):
    """What the command line returns to the shell."""

    ACCEPTED = 0
    NOT_ACCEPTED = 1
    USAGE = 2
    BUDGET = 3
    INFRASTRUCTURE = 4
    TAMPERING = 5
    INTERNAL = 70
    """A defect of Assay ended the command."""
    INTERRUPTED = 130
    CLOSED_PIPE = 141
    """The reader of stdout is gone; the shell reports a program ended by SIGPIPE the same way."""


class AssayError(Exception):
    """A part of Assay could not do what it promises."""

    exit_code: ExitCode = ExitCode.INFRASTRUCTURE

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        """What the person can do about it; empty when there is nothing to say."""


class UsageError(AssayError):
    """The request cannot be carried out as it was made."""

    exit_code = ExitCode.USAGE


class PolicyError(UsageError):
    """What is asked for is forbidden by the settings of whoever would do it. Nothing was begun."""


class MissingExtraError(AssayError):
    """An optional dependency is needed and not installed."""

    exit_code = ExitCode.USAGE

    def __init__(self, feature: str, *, extra: str) -> None:
        several = "," in extra
        super().__init__(
            f"{feature} needs extras that are not installed: {extra.replace(',', ', ')}"
            if several
            else f"{feature} needs an extra that is not installed",
            hint=how_to_install(extra),
        )
        self.extra = extra
        """Its name; where several are missing, their names with commas between them."""


class IsolationUnavailableError(AssayError):
    """This machine cannot give the isolation that was asked for. Nothing was run with less."""


class PackageError(AssayError):
    """A package that a sandbox was to have does not exist, or cannot be had as a wheel."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, *, unanswered: bool = False, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.unanswered = unanswered
        """The index could not be asked, so that nothing is known about the package."""


class SandboxUnavailableError(AssayError):
    """The sandbox itself is gone, as opposed to a program in it that failed."""

    sandbox_stays: bool = False
    """Whether only this request was turned away, and the sandbox is as it was."""

    def __init__(self, message: str, *, dispatch: Dispatch, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.dispatch: Dispatch = dispatch


class ModelUnavailableError(AssayError):
    """The model did not answer, or broke off. The same request may work later."""

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        turned_away: bool = False,
        rate_limited: bool = False,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.rate_limited = rate_limited
        """The provider limits how often, or how much, it is asked."""
        self.retry_after_s = retry_after_s
        """What the provider asked for; None if it did not say."""
        self.turned_away = turned_away
        """The provider said so at once, so that nothing was read, written or charged."""


class ModelRefusedError(AssayError):
    """The model or its provider will not answer this request, however often it is asked."""


class ContextOverflowError(ModelRefusedError):
    """The request is longer than what the model can read."""


class BudgetExceededError(AssayError):
    """The next call could go over a cap, so it was not made."""

    exit_code = ExitCode.BUDGET


class ToolError(AssayError):
    """A tool was asked for in a way it cannot be used; told to the model, never to a person."""


class JournalError(AssayError):
    """The record of a run cannot be written, or is not what it was when it was written."""


class WorkspaceError(AssayError):
    """A file of the workspace could not be read or written as asked."""

    exit_code = ExitCode.USAGE


class PathOutsideWorkspaceError(WorkspaceError):
    """The path leads out of the workspace, by name, by symlink or by mount."""


class WorkspaceFileNotFoundError(WorkspaceError):
    """There is nothing at that path."""


class NotARegularFileError(WorkspaceError):
    """There is a directory, device, FIFO or socket where a file is needed, or the reverse."""


class FileTooLargeError(WorkspaceError):
    """The file is larger than the caller is ready to take."""

    def __init__(self, message: str, *, size_bytes: int, max_bytes: int) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes
        self.max_bytes = max_bytes


class WorkspaceFullError(WorkspaceError):
    """The workspace has no room left for this file."""
