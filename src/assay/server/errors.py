"""Rejected requests: a closed list of reasons that each interface translates."""

from typing import Literal

from assay.contracts.errors import UsageError

Refusal = Literal[
    "unauthorized",
    "forbidden",
    "not-found",
    "busy",
    "not-resumable",
    "rate-limited",
    "quota-exceeded",
    "unpriced-model",
    "unusable-model",
    "unsupported",
    "overloaded",
]


class RequestRejectedError(UsageError):
    """A request that the caller may not make, or not now, or not so often."""

    def __init__(
        self,
        message: str,
        *,
        why: Refusal,
        hint: str = "",
        retry_after_s: float | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.why: Refusal = why
        self.param = param
        """The part of the request that is the reason, if there is one."""
        self.retry_after_s = retry_after_s


def not_found(what: str, name: str) -> RequestRejectedError:
    """Report that an object does not exist, also if it belongs to another user."""
    return RequestRejectedError(f"there is no {what} {name!r}", why="not-found")
