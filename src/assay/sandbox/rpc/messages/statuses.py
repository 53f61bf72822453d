"""gRPC statuses of failures, for clients that know gRPC but not Assay."""

from typing import Final

from assay.sandbox.rpc.messages import executor_pb2 as pb

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
