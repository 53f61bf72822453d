"""How the service says no: a closed list of reasons, so that each way in can translate them."""

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
    """What was asked for is not done, and the reason is who asks, when, or how often."""

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
        """Which part of the request is the reason, where one is."""
        self.retry_after_s = retry_after_s


def not_found(what: str, name: str) -> RequestRejectedError:
    """Say that there is no such thing; said of what is another's, too."""
    return RequestRejectedError(f"there is no {what} {name!r}", why="not-found")
