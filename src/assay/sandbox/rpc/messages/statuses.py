"""How failures look to a client that knows gRPC and nothing of ours."""

from typing import Final

from assay.sandbox.rpc.messages import executor_pb2 as pb

FAILURE_KEY: Final = "assay-failure-bin"
"""The trailing metadata with the whole failure, a message `Failure`."""
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
"""Read by gRPC itself: how long to wait before asking again."""
SERVICE: Final = pb.DESCRIPTOR.services_by_name["Executor"].full_name

_STATUSES: Final = {
    pb.FAILURE_CODE_USAGE: "INVALID_ARGUMENT",
    pb.FAILURE_CODE_MISSING_EXTRA: "FAILED_PRECONDITION",
    pb.FAILURE_CODE_ISOLATION_UNAVAILABLE: "FAILED_PRECONDITION",
    pb.FAILURE_CODE_PACKAGE: "FAILED_PRECONDITION",
    # Not UNAVAILABLE: that is what a broken connection says, and clients ask again on their own.
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
    """Return the name under which gRPC calls a method of the executor."""
    return f"/{SERVICE}/{method}"
