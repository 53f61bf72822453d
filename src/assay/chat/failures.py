"""Convert the error that ended a turn into the record that a session keeps."""

from assay.contracts.chat import FailureType, TurnError
from assay.contracts.errors import (
    AssayError,
    BudgetExceededError,
    ContextOverflowError,
    IsolationUnavailableError,
    ModelRefusedError,
    ModelUnavailableError,
    SandboxUnavailableError,
)


def turn_error(error: AssayError) -> TurnError:
    """Return the stored form of an error that ended a turn."""
    retry_after_s = error.retry_after_s if isinstance(error, ModelUnavailableError) else None
    return TurnError(
        type=_type_of(error), detail=str(error), hint=error.hint, retry_after_s=retry_after_s
    )


def _type_of(error: AssayError) -> FailureType:
    match error:
        case ModelUnavailableError():
            return "model-rate-limited" if error.rate_limited else "model-unavailable"
        case ContextOverflowError():
            return "context-too-long"
        case ModelRefusedError():
            return "model-refused"
        case BudgetExceededError():
            return "quota-exceeded"
        case SandboxUnavailableError() | IsolationUnavailableError():
            return "executor-unavailable"
        case _:
            return "failed"
