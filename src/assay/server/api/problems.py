"""Error responses: `application/problem+json` (RFC 9457), or the format of OpenAI's API."""

import http
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from assay.contracts.chat import FailureType, TurnError
from assay.contracts.errors import (
    AssayError,
    BudgetExceededError,
    ContextOverflowError,
    FileTooLargeError,
    IsolationUnavailableError,
    JournalError,
    MissingExtraError,
    ModelRefusedError,
    ModelUnavailableError,
    SandboxUnavailableError,
    UsageError,
    WorkspaceError,
    WorkspaceFileNotFoundError,
)
from assay.server.errors import Refusal, RequestRejectedError

_LOG: Final = logging.getLogger("assay.http")
MEDIA_TYPE: Final = "application/problem+json"
_TYPES: Final = "https://assay.invalid/problems/"
"""Identifiers, not addresses: they cannot be fetched."""
_REFUSALS: Final[Mapping[Refusal, int]] = {
    "unauthorized": 401,
    "forbidden": 403,
    "not-found": 404,
    "busy": 409,
    "not-resumable": 409,
    "rate-limited": 429,
    "quota-exceeded": 429,
    "unpriced-model": 400,
    "unusable-model": 400,
    "unsupported": 400,
    "overloaded": 503,
}
_TURNS: Final[Mapping[FailureType, int]] = {
    "model-unavailable": 502,
    "model-refused": 502,
    "model-rate-limited": 429,
    "context-too-long": 422,
    "quota-exceeded": 429,
    "executor-unavailable": 503,
    "failed": 500,
}
_ERRORS: Final[tuple[tuple[type[AssayError], int, str], ...]] = (
    (WorkspaceFileNotFoundError, 404, "not-found"),
    (FileTooLargeError, 413, "too-large"),
    (BudgetExceededError, 429, "quota-exceeded"),
    (MissingExtraError, 503, "not-installed"),
    (IsolationUnavailableError, 503, "executor-unavailable"),
    (SandboxUnavailableError, 503, "executor-unavailable"),
    (ModelUnavailableError, 502, "model-unavailable"),
    (ContextOverflowError, 422, "context-too-long"),
    (ModelRefusedError, 502, "model-refused"),
    (JournalError, 503, "storage-unavailable"),
    (WorkspaceError, 400, "bad-file"),
    (UsageError, 400, "bad-request"),
)
_STATUSES: Final = {
    400: "bad-request",
    404: "not-found",
    405: "method-not-allowed",
    408: "timeout",
    413: "too-large",
    415: "unsupported-media-type",
}
_GUARDED: Final = {
    "storage-unavailable": "The server cannot read or write its data.",
    "executor-unavailable": "The code executor is not available.",
}
"""What callers without admin rights see: the details name hosts, ports and files of the server."""
_RETRY_S: Final = {"overloaded": 5.0, "executor-unavailable": 5.0, "storage-unavailable": 5.0}
_OPENAI_PATHS: Final = ("/v1/chat/completions", "/v1/models")
_MOST_FAULTS: Final = 20


class FieldError(BaseModel):
    """An error in one field of a request."""

    field: str = Field(examples=["files[0].path"])
    message: str = Field(examples=["Must not be empty."])


class Problem(BaseModel):
    """An error, with advice for the caller."""

    type: str = Field(examples=[f"{_TYPES}not-found"])
    title: str = Field(examples=["Not found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["There is no session 'brisk-otter-4f2a'."])
    hint: str | None = Field(default=None, examples=["`GET /v1/sessions` lists them."])
    request_id: str = Field(examples=["3f9a1c0b7d2e4a55"])
    errors: list[FieldError] | None = Field(default=None, description="Of fields that are wrong")
    session_id: str | None = Field(default=None, description="Of the turn that failed")
    turn: int | None = None


class OpenAIErrorBody(BaseModel):
    """Error details in the format of OpenAI's API."""

    message: str
    type: str = Field(examples=["invalid_request_error"])
    param: str | None = None
    code: str | None = Field(default=None, examples=["quota-exceeded"])


class OpenAIError(BaseModel):
    """An error in the format of OpenAI's API."""

    error: OpenAIErrorBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error before it is formatted."""

    status: int
    kind: str
    detail: str
    hint: str = ""
    retry_after_s: float | None = None
    errors: Sequence[tuple[str, str]] = ()
    """Field and message."""
    param: str | None = None
    """The parameter that OpenAI's format names."""
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])


class TurnFailedError(Exception):
    """A turn failed in a component that it needs; the session records it as failed."""

    def __init__(self, error: TurnError | None, session_id: str, turn: int) -> None:
        self.error = error or TurnError(type="failed", detail="the turn failed")
        super().__init__(self.error.detail)
        self.session_id = session_id
        self.turn = turn


def problem(fault: Fault, *, request_id: str, path: str) -> Response:
    """Build the response for an error, in the format that belongs to the path."""
    body: dict[str, Any]
    if path.startswith(_OPENAI_PATHS):
        status, body, media_type = _openai_status(fault), openai_error(fault), "application/json"
    else:
        status, body, media_type = fault.status, _body(fault, request_id), MEDIA_TYPE
    headers: dict[str, str] = {}
    if status == http.HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="assay"'
    retry_after_s = fault.retry_after_s or _RETRY_S.get(fault.kind)
    if retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(retry_after_s)))
    return Response(json.dumps(body), status_code=status, media_type=media_type, headers=headers)


def _body(fault: Fault, request_id: str) -> dict[str, Any]:
    errors = [{"field": name, "message": message} for name, message in fault.errors]
    return {
        "type": _TYPES + fault.kind,
        "title": fault.kind.replace("-", " ").capitalize(),
        "status": fault.status,
        "detail": sentence(fault.detail),
        **({"hint": sentence(fault.hint)} if fault.hint else {}),
        "request_id": request_id,
        **({"errors": errors} if errors else {}),
        **fault.more,
    }


def _openai_status(fault: Fault) -> int:
    # OpenAI's API answers an invalid request with 400, and its clients expect that.
    return 400 if fault.status == http.HTTPStatus.UNPROCESSABLE_ENTITY else fault.status


def openai_error(fault: Fault) -> dict[str, Any]:
    """Return an error in the format of OpenAI's API."""
    status = _openai_status(fault)
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    usual = "server_error" if status >= 500 else "invalid_request_error"  # noqa: PLR2004 - HTTP
    param = fault.param or (fault.errors[0][0] if fault.errors else None)
    words = (fault.detail, *(f"{name}: {message}" for name, message in fault.errors), fault.hint)
    return {
        "error": {
            "message": " ".join(sentence(part) for part in words if part),
            "type": kinds.get(status, usual),
            "param": param,
            "code": fault.kind,
        }
    }


def sentence(text: str) -> str:
    """Return text with a capital letter and a period."""
    text = text.strip().encode("utf-8", "replace").decode()
    first = text.partition(" ")[0]
    if first.isalpha() and first.islower() and first.isascii():
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) or not text else f"{text}."


def request_id(request: Request) -> str:
    """Return the ID of this request in the log."""
    return getattr(request.state, "request_id", "")


def _answer(request: Request, fault: Fault) -> Response:
    return problem(fault, request_id=request_id(request), path=request.url.path)


def fault_of(error: AssayError, *, for_admin: bool) -> Fault:
    """Translate an error; only admins see hosts, ports and files of the server."""
    if isinstance(error, RequestRejectedError):
        return Fault(
            status=_REFUSALS[error.why],
            kind=error.why,
            detail=str(error),
            hint=error.hint,
            retry_after_s=error.retry_after_s,
            param=error.param,
        )
    fitting = ((status, kind) for family, status, kind in _ERRORS if isinstance(error, family))
    status, kind = next(fitting, (503, "unavailable"))
    limited = isinstance(error, ModelUnavailableError | BudgetExceededError)
    wait_s = error.retry_after_s if limited else None
    if isinstance(error, ModelUnavailableError) and error.rate_limited:
        status, kind = 429, "model-rate-limited"
    fault = Fault(
        status=status, kind=kind, detail=str(error), hint=error.hint, retry_after_s=wait_s
    )
    return fault if for_admin else _guarded(fault)


def turn_fault(failed: TurnFailedError, *, for_admin: bool) -> Fault:
    """Translate the reason of a failed turn."""
    error = failed.error
    fault = Fault(
        status=_TURNS[error.type],
        kind=error.type,
        detail=error.detail,
        hint=error.hint,
        retry_after_s=error.retry_after_s,
        more={"session_id": failed.session_id, "turn": failed.turn},
    )
    return fault if for_admin else _guarded(fault)


def _guarded(fault: Fault) -> Fault:
    if fault.kind not in _GUARDED:
        return fault
    hint = "try again later; the log of the server has the cause"
    return replace(fault, detail=_GUARDED[fault.kind], hint=hint)


def for_admin(request: Request) -> bool:
    """Whether an admin sent this request."""
    caller = getattr(request.state, "caller", None)
    return caller is not None and caller.role == "admin"


async def on_assay_error(request: Request, error: Exception) -> Response:
    """Translate an `AssayError`."""
    assert isinstance(error, AssayError)  # noqa: S101 - registered for these
    fault = fault_of(error, for_admin=for_admin(request))
    if fault.kind in _GUARDED:
        _LOG.error("%s", error, extra={"request_id": request_id(request)})
    return _answer(request, fault)


async def on_turn_failed(request: Request, error: Exception) -> Response:
    """Answer with the reason of a failed turn."""
    assert isinstance(error, TurnFailedError)  # noqa: S101 - registered for these
    _LOG.warning("a turn failed: %s", error, extra={"request_id": request_id(request)})
    return _answer(request, turn_fault(error, for_admin=for_admin(request)))


async def on_wrong_request(request: Request, error: Exception) -> Response:
    """Describe the errors of a request, without its content."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for these
    found = [_field_error(fault, error.body) for fault in error.errors()]
    errors = tuple(dict(found[:_MOST_FAULTS]).items())
    count = "1 field is" if len(errors) == 1 else f"{len(errors)} fields are"
    detail = f"{count} not valid." if any(name for name, _ in errors) else errors[0][1]
    return _answer(
        request, Fault(status=422, kind="invalid", detail=detail, errors=errors, hint="see /docs")
    )


def _field_error(fault: Mapping[str, Any], body: object) -> tuple[str, str]:
    """Return the path of a field as the client wrote it, and its error."""
    kind = str(fault["type"])
    where, *parts = fault["loc"]
    if kind == "json_invalid":
        return "", f"The body is not valid JSON (at character {parts[0] if parts else 0})."
    message = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if kind == "missing":
        message = "This field is required." if parts else "A body is required."
    elif kind == "string_pattern_mismatch":
        message = "The value does not have the required form."
    elif kind == "extra_forbidden":
        message = "There is no such field."
    path = _path(parts, body) if where == "body" else ".".join(str(part) for part in parts)
    return path, sentence(message)


def _path(parts: Sequence[str | int], body: object) -> str:
    """Format the path of a field; omit the names of validators and union members."""
    path, node = "", body
    for number, part in enumerate(parts):
        if isinstance(node, dict):
            table = cast("dict[Any, object]", node)
            if part not in table and number < len(parts) - 1:
                continue
            if part not in table and not str(part).isidentifier():
                continue
            path += f".{part}" if path else str(part)
            node = table.get(part)
        elif isinstance(node, list) and isinstance(part, int):
            path += f"[{part}]"
            items = cast("list[object]", node)
            node = items[part] if part < len(items) else None
    return path.encode("utf-8", "replace").decode()[:200]


async def on_http_error(request: Request, error: Exception) -> Response:
    """Translate an HTTP error of the framework."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for these
    status = error.status_code
    usual = http.HTTPStatus(status).phrase.lower().replace(" ", "-")
    kind = _STATUSES.get(status, usual)
    response = _answer(request, Fault(status=status, kind=kind, detail=str(error.detail)))
    for name, value in (error.headers or {}).items():
        response.headers.setdefault(name, value)
    return response


async def on_mistake(request: Request, error: Exception) -> Response:
    """Report an internal error without details, which are in the log."""
    del error
    detail = "Internal error. Search the server log for this request ID."
    return _answer(request, Fault(status=500, kind="internal-error", detail=detail))


_USUAL: Final = (400, 401, 403, 408, 413, 415, 421, 422, 429, 503)


def documented(
    *statuses: int, model: str = "Problem", media_type: str = MEDIA_TYPE
) -> dict[int | str, dict[str, Any]]:
    """Return the problems of an endpoint for the OpenAPI document."""
    content = {media_type: {"schema": {"$ref": f"#/components/schemas/{model}"}}}
    return {
        status: {"description": http.HTTPStatus(status).phrase, "content": content}
        for status in sorted({*_USUAL, *statuses})
    }


def documented_openai(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors of an OpenAI-compatible endpoint for the OpenAPI document."""
    return documented(*statuses, model="OpenAIError", media_type="application/json")
