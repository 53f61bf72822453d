"""JSON encoding of requests, replies and failures, for recordings, scripts and keys."""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, cast

from pydantic import TypeAdapter

from assay.contracts.errors import (
    BudgetExceededError,
    ContextOverflowError,
    ModelRefusedError,
    ModelUnavailableError,
)
from assay.contracts.messages import ModelInfo, Reply, Request

T = TypeVar("T")
FailureKind = Literal["unavailable", "refused", "overflow", "budget"]

ModelFailure = ModelUnavailableError | ModelRefusedError | BudgetExceededError
"""All errors that the model port may raise."""


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def request_to_json(request: Request) -> dict[str, Any]:
    """Return the JSON of a request, without defaults, so that new fields do not change old ones."""
    fields = _as_json(_adapter(Request).dump_python(request, exclude_defaults=True, warnings=False))
    if "temperature" in fields:
        fields["temperature"] = float(fields["temperature"])  # `0` requests the same as `0.0`
    return fields


def reply_to_json(reply: Reply) -> dict[str, Any]:
    """Return the JSON of a reply, without defaults."""
    return _as_json(_adapter(Reply).dump_python(reply, exclude_defaults=True, warnings=False))


def _as_json(fields: dict[str, Any]) -> dict[str, Any]:
    # Not with pydantic: it replaces lone surrogates in names, and rejects arguments and schemas
    # that are mappings other than `dict`.
    return json.loads(json.dumps(fields, default=_plain))


def _plain(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def reply_from_json(fields: Mapping[str, Any]) -> Reply:
    """Parse a reply; raises pydantic's `ValidationError` for invalid data."""
    return _adapter(Reply).validate_python(fields)


def info_to_json(info: ModelInfo) -> dict[str, Any]:
    """Return the properties of a model as JSON, with defaults, which may change later."""
    return _adapter(ModelInfo).dump_python(info, mode="json")


def info_from_json(fields: Mapping[str, Any]) -> ModelInfo:
    """Parse the properties of a model; raises pydantic's `ValidationError` for invalid data."""
    return _adapter(ModelInfo).validate_python(fields)


def key_of(request: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a request's JSON with sorted names; equal for equal requests."""
    canonical = json.dumps(request, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def failure_to_json(error: ModelFailure) -> dict[str, Any]:
    """Return the JSON of a failure: a name from a closed set, and its message."""
    fields: dict[str, Any] = {"kind": _kind_of(error), "message": str(error)}
    if error.hint:
        fields["hint"] = error.hint
    if isinstance(error, ModelUnavailableError) and error.retry_after_s is not None:
        fields["retry_after_s"] = error.retry_after_s
    if isinstance(error, ModelUnavailableError) and error.not_charged:
        fields["not_charged"] = True
    return fields


def _kind_of(error: ModelFailure) -> FailureKind:
    match error:
        case ContextOverflowError():
            return "overflow"
        case ModelRefusedError():
            return "refused"
        case ModelUnavailableError():
            return "unavailable"
        case BudgetExceededError():
            return "budget"


def build_failure(
    kind: FailureKind,
    message: str,
    *,
    hint: str = "",
    retry_after_s: float | None = None,
    not_charged: bool = False,
) -> ModelFailure:
    """Build the failure of a name."""
    match kind:
        case "overflow":
            return ContextOverflowError(message, hint=hint)
        case "refused":
            return ModelRefusedError(message, hint=hint)
        case "unavailable":
            return ModelUnavailableError(
                message, hint=hint, retry_after_s=retry_after_s, not_charged=not_charged
            )
        case "budget":
            return BudgetExceededError(message, hint=hint)
