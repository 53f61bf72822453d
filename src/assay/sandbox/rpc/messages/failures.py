"""The closed table of errors that cross to another process: an error code and its details.

No other error crosses. An error outside the table is a server fault: the client learns only that a
fault occurred, and the server keeps the cause. Failures also have gRPC statuses, for clients that
know gRPC but not Assay.
"""

from typing import Final

from assay.contracts.errors import (
    AssayError,
    Dispatch,
    FileTooLargeError,
    IsolationUnavailableError,
    MissingExtraError,
    NotARegularFileError,
    PackageError,
    PathOutsideWorkspaceError,
    PolicyError,
    SandboxUnavailableError,
    UsageError,
    WorkspaceError,
    WorkspaceFileNotFoundError,
    WorkspaceFullError,
)
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages.codec import MessageError, count, member, to_text

_LONGEST_MESSAGE: Final = 4000

_PLAIN: Final[dict[pb.FailureCode, type[AssayError]]] = {
    pb.FAILURE_CODE_USAGE: UsageError,
    pb.FAILURE_CODE_ISOLATION_UNAVAILABLE: IsolationUnavailableError,
    pb.FAILURE_CODE_PACKAGE: PackageError,
    pb.FAILURE_CODE_WORKSPACE: WorkspaceError,
    pb.FAILURE_CODE_PATH_OUTSIDE_WORKSPACE: PathOutsideWorkspaceError,
    pb.FAILURE_CODE_FILE_NOT_FOUND: WorkspaceFileNotFoundError,
    pb.FAILURE_CODE_NOT_A_REGULAR_FILE: NotARegularFileError,
    pb.FAILURE_CODE_WORKSPACE_FULL: WorkspaceFullError,
    pb.FAILURE_CODE_POLICY: PolicyError,
}
"""Errors that consist of a message and a hint."""
_CODES: Final = {kind: code for code, kind in _PLAIN.items()} | {
    MissingExtraError: pb.FAILURE_CODE_MISSING_EXTRA,
    SandboxUnavailableError: pb.FAILURE_CODE_SANDBOX_UNAVAILABLE,
    FileTooLargeError: pb.FAILURE_CODE_FILE_TOO_LARGE,
}
_DISPATCHES: Final[dict[pb.Dispatch, Dispatch]] = {
    pb.DISPATCH_NEVER_STARTED: "never_started",
    pb.DISPATCH_OUTCOME_UNKNOWN: "outcome_unknown",
}
_DISPATCH_NUMBERS: Final = {value: number for number, value in _DISPATCHES.items()}


class ExecutorBusyError(SandboxUnavailableError):
    """The executor has too many requests. Nothing was started."""

    sandbox_stays = True

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        hint = f"ask again in {retry_after_s:g} s"
        super().__init__(message, dispatch="never_started", hint=hint)
        self.retry_after_s = retry_after_s


class RequestRefusedError(SandboxUnavailableError):
    """The executor does not know the client or does not allow the request. Nothing was started."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, dispatch="never_started", hint=hint)


_CODES[ExecutorBusyError] = pb.FAILURE_CODE_BUSY
_CODES[RequestRefusedError] = pb.FAILURE_CODE_REFUSED


def to_failure(error: Exception) -> pb.Failure:
    """Encode an error."""
    if isinstance(error, MessageError):
        return _failure(pb.FAILURE_CODE_USAGE, str(error))
    if not isinstance(error, AssayError):
        return _failure(pb.FAILURE_CODE_INTERNAL, "the executor has a fault; its log says more")
    for kind in type(error).__mro__:
        if code := _CODES.get(kind):
            break
    else:
        return _failure(pb.FAILURE_CODE_INTERNAL, str(error), error.hint)
    failure = _failure(code, str(error), error.hint)
    match error:
        case ExecutorBusyError(retry_after_s=retry_after_s):
            failure.retry_after_s = retry_after_s
        case SandboxUnavailableError(dispatch=dispatch):
            failure.dispatch = _DISPATCH_NUMBERS[dispatch]
        case FileTooLargeError(size_bytes=size_bytes, max_bytes=max_bytes):
            failure.size_bytes, failure.max_bytes = size_bytes, max_bytes
        case MissingExtraError(extra=extra):
            failure.extra = extra
        case _:
            pass
    return failure


def _failure(code: pb.FailureCode, message: str, hint: str = "") -> pb.Failure:
    return pb.Failure(
        code=code,
        message=to_text(message[:_LONGEST_MESSAGE]),
        hint=to_text(hint[:_LONGEST_MESSAGE]),
    )


def from_failure(failure: pb.Failure) -> AssayError:
    """Decode an error; an unknown code is a fault of the other side.

    Raises:
        MessageError: If the details of the code are wrong.
    """
    message = failure.message[:_LONGEST_MESSAGE] or "the executor did not say what went wrong"
    hint = failure.hint[:_LONGEST_MESSAGE]
    match failure.code:
        case code if code in _PLAIN:
            return _PLAIN[code](message, hint=hint)
        case pb.FAILURE_CODE_FILE_TOO_LARGE:
            return FileTooLargeError(
                message,
                size_bytes=count(failure.size_bytes, of="a size"),
                max_bytes=count(failure.max_bytes, of="a size"),
            )
        case pb.FAILURE_CODE_MISSING_EXTRA:
            return UsageError(f"on the executor: {message}", hint=hint)
        case pb.FAILURE_CODE_BUSY:
            return ExecutorBusyError(message, retry_after_s=_patience(failure.retry_after_s))
        case pb.FAILURE_CODE_REFUSED:
            return RequestRefusedError(message, hint=hint)
        case _:
            return SandboxUnavailableError(message, dispatch=_dispatch(failure), hint=hint)


def _dispatch(failure: pb.Failure) -> Dispatch:
    if failure.code != pb.FAILURE_CODE_SANDBOX_UNAVAILABLE:
        return "outcome_unknown"
    return member(_DISPATCHES, failure.dispatch, of="dispatch")


def _patience(retry_after_s: float) -> float:
    # Also excludes NaN.
    return min(retry_after_s, 3600.0) if retry_after_s > 0 else 1.0


FAILURE_KEY: Final = "assay-failure-bin"
"""The trailing metadata with the whole failure, a `Failure` message."""
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
"""The delay before the next attempt; gRPC itself reads it."""
SERVICE: Final = pb.DESCRIPTOR.services_by_name["Executor"].full_name

_STATUSES: Final = {
    pb.FAILURE_CODE_USAGE: "INVALID_ARGUMENT",
    pb.FAILURE_CODE_MISSING_EXTRA: "FAILED_PRECONDITION",
    pb.FAILURE_CODE_ISOLATION_UNAVAILABLE: "FAILED_PRECONDITION",
    pb.FAILURE_CODE_PACKAGE: "FAILED_PRECONDITION",
    # Not UNAVAILABLE: broken connections have that status, and clients retry it on their own.
    pb.FAILURE_CODE_SANDBOX_UNAVAILABLE: "ABORTED",
    pb.FAILURE_CODE_WORKSPACE: "FAILED_PRECONDITION",
    pb.FAILURE_CODE_PATH_OUTSIDE_WORKSPACE: "PERMISSION_DENIED",
    pb.FAILURE_CODE_FILE_NOT_FOUND: "NOT_FOUND",
    pb.FAILURE_CODE_NOT_A_REGULAR_FILE: "FAILED_PRECONDITION",
    pb.FAILURE_CODE_FILE_TOO_LARGE: "OUT_OF_RANGE",
    pb.FAILURE_CODE_WORKSPACE_FULL: "FAILED_PRECONDITION",
    pb.FAILURE_CODE_BUSY: "RESOURCE_EXHAUSTED",
    pb.FAILURE_CODE_REFUSED: "UNAUTHENTICATED",
    pb.FAILURE_CODE_INTERNAL: "INTERNAL",
    pb.FAILURE_CODE_POLICY: "PERMISSION_DENIED",
}


def status_of(code: pb.FailureCode) -> str:
    """Return the name of the gRPC status for a failure."""
    return _STATUSES.get(code, "UNKNOWN")


def path_of(method: str) -> str:
    """Return the gRPC path of a method of the executor."""
    return f"/{SERVICE}/{method}"
