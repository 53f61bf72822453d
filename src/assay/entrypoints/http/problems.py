"""Errors as `application/problem+json` (RFC 9457), translated here and nowhere else."""

import http
import json
from collections.abc import Mapping
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from assay.contracts.errors import (
    AssayError,
    BudgetExceededError,
    FileTooLargeError,
    IsolationUnavailableError,
    JournalError,
    MissingExtraError,
    ModelUnavailableError,
    SandboxUnavailableError,
    UsageError,
    WorkspaceError,
    WorkspaceFileNotFoundError,
)
from assay.hosting.refusing import Refusal, RefusedError

MEDIA_TYPE: Final = "application/problem+json"
_TYPES: Final = "https://assay.invalid/problems/"
"""Names, not places: nothing is to be fetched there."""
_REFUSALS: Final[Mapping[Refusal, int]] = {
    "unauthorized": 401,
    "forbidden": 403,
    "not-found": 404,
    "busy": 409,
    "rate-limited": 429,
    "quota-exceeded": 429,
    "overloaded": 503,
}
_ERRORS: Final[tuple[tuple[type[AssayError], int, str], ...]] = (
    (WorkspaceFileNotFoundError, 404, "not-found"),
    (FileTooLargeError, 413, "too-large"),
    (BudgetExceededError, 429, "quota-exceeded"),
    (MissingExtraError, 503, "not-installed"),
    (IsolationUnavailableError, 503, "no-isolation"),
    (SandboxUnavailableError, 503, "no-sandbox"),
    (ModelUnavailableError, 503, "no-model"),
    (JournalError, 503, "not-written"),
    (WorkspaceError, 400, "bad-file"),
    (UsageError, 400, "bad-request"),
)
_MOST_FAULTS: Final = 5


class Problem(BaseModel):
    """What went wrong, and what to do about it."""

    type: str = Field(examples=[f"{_TYPES}not-found"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["there is no session 'brisk-otter-4f2a'"])
    hint: str | None = Field(default=None, examples=["`GET /v1/sessions` lists them"])
    request_id: str = Field(examples=["3f9a1c0b7d2e4a55"])


def problem(
    request_id: str,
    status: int,
    kind: str,
    detail: str,
    *,
    hint: str = "",
    retry_after_s: float | None = None,
) -> Response:
    """Build the response for a problem."""
    fields: dict[str, Any] = {
        "type": _TYPES + kind,
        "title": http.HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **({"hint": hint} if hint else {}),
        "request_id": request_id,
    }
    headers: dict[str, str] = {}
    if status == http.HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="assay"'
    if retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(retry_after_s)))
    return Response(json.dumps(fields), status_code=status, media_type=MEDIA_TYPE, headers=headers)


def request_id(request: Request) -> str:
    """Return by which name this request stands in the log."""
    return getattr(request.state, "request_id", "")


async def on_assay_error(request: Request, error: Exception) -> Response:
    """Translate an error of ours."""
    name = request_id(request)
    if isinstance(error, RefusedError):
        status = _REFUSALS[error.why]
        return problem(
            name,
            status,
            error.why,
            str(error),
            hint=error.hint,
            retry_after_s=error.retry_after_s or (5.0 if error.why == "overloaded" else None),
        )
    assert isinstance(error, AssayError)  # noqa: S101 - registered for these
    fitting = ((status, kind) for family, status, kind in _ERRORS if isinstance(error, family))
    status, kind = next(fitting, (503, "unavailable"))
    wait_s = error.retry_after_s if isinstance(error, ModelUnavailableError) else None
    return problem(name, status, kind, str(error), hint=error.hint, retry_after_s=wait_s)


async def on_wrong_request(request: Request, error: Exception) -> Response:
    """Say what is wrong with a request, without saying it back."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for these
    faults = [
        f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
        for fault in error.errors()[:_MOST_FAULTS]
    ]
    text = "; ".join(faults).encode("utf-8", "replace").decode()
    return problem(request_id(request), 422, "invalid", text, hint="see /docs")


async def on_http_error(request: Request, error: Exception) -> Response:
    """Translate what the framework refuses."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for these
    kind = http.HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    response = problem(request_id(request), error.status_code, kind, str(error.detail))
    for name, value in (error.headers or {}).items():
        response.headers.setdefault(name, value)
    return response


async def on_mistake(request: Request, error: Exception) -> Response:
    """Say that it was our mistake, and nothing else of it: the log has the rest."""
    del error
    detail = "Assay made a mistake; its log says more under this request id"
    return problem(request_id(request), 500, "mistake", detail)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the problems that an endpoint may answer with, for the OpenAPI document."""
    usual = (400, 401, 403, 408, 413, 415, 421, 422, 429, 503)
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": http.HTTPStatus(status).phrase, "content": content}
        for status in sorted({*usual, *statuses})
    }
