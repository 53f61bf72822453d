"""The closed table of errors that cross to another process: an error code and its details.

No other error crosses. An error outside the table is a server fault: the client learns only that a
fault occurred, and the server keeps the cause. Failures also have gRPC statuses, for clients that
know gRPC but not Assay.
"""

from typing import Any, Final, get_args

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
from assay.sandbox.rpc.messages.codec import EnumMap, MessageError, measure, to_text

_LONGEST_MESSAGE: Final = 4000


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


_TABLE: Final[dict[pb.FailureCode, tuple[type[AssayError] | None, str]]] = {
    pb.FAILURE_CODE_USAGE: (UsageError, "INVALID_ARGUMENT"),
    pb.FAILURE_CODE_MISSING_EXTRA: (MissingExtraError, "FAILED_PRECONDITION"),
    pb.FAILURE_CODE_ISOLATION_UNAVAILABLE: (IsolationUnavailableError, "FAILED_PRECONDITION"),
    pb.FAILURE_CODE_PACKAGE: (PackageError, "FAILED_PRECONDITION"),
    # Not UNAVAILABLE: broken connections have that status, and clients retry it on their own.
    pb.FAILURE_CODE_SANDBOX_UNAVAILABLE: (SandboxUnavailableError, "ABORTED"),
    pb.FAILURE_CODE_WORKSPACE: (WorkspaceError, "FAILED_PRECONDITION"),
    pb.FAILURE_CODE_PATH_OUTSIDE_WORKSPACE: (PathOutsideWorkspaceError, "PERMISSION_DENIED"),
    pb.FAILURE_CODE_FILE_NOT_FOUND: (WorkspaceFileNotFoundError, "NOT_FOUND"),
    pb.FAILURE_CODE_NOT_A_REGULAR_FILE: (NotARegularFileError, "FAILED_PRECONDITION"),
    pb.FAILURE_CODE_FILE_TOO_LARGE: (FileTooLargeError, "OUT_OF_RANGE"),
    pb.FAILURE_CODE_WORKSPACE_FULL: (WorkspaceFullError, "FAILED_PRECONDITION"),
    pb.FAILURE_CODE_BUSY: (ExecutorBusyError, "RESOURCE_EXHAUSTED"),
    pb.FAILURE_CODE_REFUSED: (RequestRefusedError, "UNAUTHENTICATED"),
    pb.FAILURE_CODE_INTERNAL: (None, "INTERNAL"),
    pb.FAILURE_CODE_POLICY: (PolicyError, "PERMISSION_DENIED"),
}
"""The error and the gRPC status of each code."""
_CODES: Final = {kind: code for code, (kind, _) in _TABLE.items() if kind is not None}
_DISPATCHES: Final = EnumMap[Dispatch]("DISPATCH", get_args(Dispatch))


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
    details: dict[str, Any] = {}
    match error:
        case ExecutorBusyError(retry_after_s=retry_after_s):
            details = {"retry_after_s": retry_after_s}
        case SandboxUnavailableError(dispatch=dispatch):
            details = {"dispatch": _DISPATCHES.encode(dispatch)}
        case FileTooLargeError(size_bytes=size_bytes, max_bytes=max_bytes):
            details = {"size_bytes": size_bytes, "max_bytes": max_bytes}
        case MissingExtraError(extra=extra):
            details = {"extra": extra}
        case _:
            pass
    return _failure(code, str(error), error.hint, **details)


def _failure(code: pb.FailureCode, message: str, hint: str = "", **details: Any) -> pb.Failure:
    return pb.Failure(
        code=code,
        message=to_text(message[:_LONGEST_MESSAGE]),
        hint=to_text(hint[:_LONGEST_MESSAGE]),
        **details,
    )


def from_failure(failure: pb.Failure) -> AssayError:
    """Decode an error; an unknown code is a fault of the other side.

    Raises:
        MessageError: If the details of the code are wrong.
    """
    message = failure.message[:_LONGEST_MESSAGE] or "the executor did not say what went wrong"
    hint = failure.hint[:_LONGEST_MESSAGE]
    kind, _ = _TABLE.get(failure.code, (None, ""))
    if kind is FileTooLargeError:
        return FileTooLargeError(
            message,
            size_bytes=measure(failure.size_bytes, of="a size"),
            max_bytes=measure(failure.max_bytes, of="a size"),
        )
    if kind is MissingExtraError:
        return UsageError(f"on the executor: {message}", hint=hint)
    if kind is ExecutorBusyError:
        # The comparison also excludes NaN.
        retry_after_s = min(failure.retry_after_s, 3600.0) if failure.retry_after_s > 0 else 1.0
        return ExecutorBusyError(message, retry_after_s=retry_after_s)
    if kind is None:
        return SandboxUnavailableError(message, dispatch="outcome_unknown", hint=hint)
    if kind is SandboxUnavailableError:
        dispatch = _DISPATCHES.decode(failure.dispatch)
        return SandboxUnavailableError(message, dispatch=dispatch, hint=hint)
    return kind(message, hint=hint)


FAILURE_KEY: Final = "assay-failure-bin"
"""The trailing metadata with the whole failure, a `Failure` message."""
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
"""The delay before the next attempt; gRPC itself reads it."""
SERVICE: Final = pb.DESCRIPTOR.services_by_name["Executor"].full_name


def status_of(code: pb.FailureCode) -> str:
    """Return the name of the gRPC status for a failure."""
    _, status = _TABLE.get(code, (None, "UNKNOWN"))
    return status


def path_of(method: str) -> str:
    """Return the gRPC path of a method of the executor."""
    return f"/{SERVICE}/{method}"
