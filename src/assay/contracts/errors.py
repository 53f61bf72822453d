"""Exceptions that Assay raises. The family says who can fix the problem, and how.

    AssayError
    ├── UsageError                     the request is invalid: change it
    │   └── PolicyError                settings forbid it: change the request or the settings
    ├── MissingExtraError              an optional dependency is missing: install it
    ├── IsolationUnavailableError      this machine cannot isolate as requested
    ├── PackageError                   a package is not available: name another one
    ├── SandboxUnavailableError        the sandbox is lost: open another one
    ├── ModelUnavailableError          the model did not answer: retry later
    ├── ModelRefusedError              the model or its provider rejects the request
    │   └── ContextOverflowError       the request exceeds the context: send less
    ├── BudgetExceededError            the money, tokens or calls are used up
    ├── ToolError                      a tool call is invalid: the model corrects it
    ├── JournalError                   a run's record cannot be written or read
    └── WorkspaceError                 a file operation failed; the sandbox still works
        ├── PathOutsideWorkspaceError
        ├── WorkspaceFileNotFoundError
        ├── NotARegularFileError
        ├── FileTooLargeError
        └── WorkspaceFullError

A failing program, an exceeded time limit or a killed process is not an exception but a value:
`assay.contracts.execution.ExecutionResult`.
"""

from collections.abc import Generator
from contextlib import contextmanager
from enum import IntEnum
from typing import Literal

from assay.contracts.distribution import how_to_install

Dispatch = Literal["never_started", "outcome_unknown"]
"""State of a program whose sandbox was lost: safe to retry, or possibly run already."""


class ExitCode(IntEnum):
    """Exit codes of the command line."""

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
    """The reader closed stdout; the shell reports a program that SIGPIPE killed in the same way."""


class AssayError(Exception):
    """Base class: a component of Assay could not do its work."""

    exit_code: ExitCode = ExitCode.INFRASTRUCTURE

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        """What the user can do about it; empty if nothing."""


class UsageError(AssayError):
    """The request is invalid and cannot be carried out."""

    exit_code = ExitCode.USAGE


class PolicyError(UsageError):
    """The settings forbid the request. Nothing has started."""


class MissingExtraError(AssayError):
    """A required optional dependency is not installed."""

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
        """Name of the extra; several names are separated by commas."""


@contextmanager
def require(feature: str, *, extra: str) -> Generator[None]:
    """Name the extra that `feature` needs if an import in this context fails.

    Raises:
        MissingExtraError: Instead of an `ImportError`.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(feature, extra=extra) from error


class IsolationUnavailableError(AssayError):
    """This machine cannot provide the requested isolation. Nothing ran with less."""


class PackageError(AssayError):
    """A package for a sandbox does not exist, or is not available as a wheel."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, *, index_unreachable: bool = False, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.index_unreachable = index_unreachable
        """The package index did not answer, so Assay does not know whether the package exists."""


class SandboxUnavailableError(AssayError):
    """The sandbox is lost, unlike a program in it that failed."""

    sandbox_stays: bool = False
    """Whether only this request was rejected, and the sandbox is unchanged."""

    def __init__(self, message: str, *, dispatch: Dispatch, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.dispatch: Dispatch = dispatch


class ModelUnavailableError(AssayError):
    """The model did not answer, or its reply broke off. The same request may work later."""

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        not_charged: bool = False,
        rate_limited: bool = False,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.rate_limited = rate_limited
        """The provider limits the rate or the volume of requests."""
        self.retry_after_s = retry_after_s
        """Delay that the provider asked for; None if it named none."""
        self.not_charged = not_charged
        """The provider rejected the request, or did not get it, so it read and charged nothing.

        Only then, or if the provider names a delay, may the request be sent again."""


class ModelRefusedError(AssayError):
    """The model or its provider will never answer this request."""


class ContextOverflowError(ModelRefusedError):
    """The request is longer than the model's context."""


class BudgetExceededError(AssayError):
    """The next call could exceed a cap, so Assay did not make it."""

    exit_code = ExitCode.BUDGET

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s
        """Set if the cap is renewed after a time, as a daily quota is."""


class ToolError(AssayError):
    """A tool call was invalid; the model receives the message, the user never does."""


class JournalError(AssayError):
    """The record of a run cannot be written, or does not match what was written."""


class WorkspaceError(AssayError):
    """A file operation in the workspace failed."""

    exit_code = ExitCode.USAGE


class PathOutsideWorkspaceError(WorkspaceError):
    """The path leads out of the workspace: by its name, a symlink or a mount."""


class WorkspaceFileNotFoundError(WorkspaceError):
    """Nothing exists at that path."""


class NotARegularFileError(WorkspaceError):
    """There is a directory, device, FIFO or socket where a file is needed, or the reverse."""


class FileTooLargeError(WorkspaceError):
    """The file is larger than the caller accepts."""

    def __init__(self, message: str, *, size_bytes: int, max_bytes: int) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes
        self.max_bytes = max_bytes


class WorkspaceFullError(WorkspaceError):
    """The workspace has no space left for this file."""
