"""Connection to a provider: address, key, timeouts, HTTP client, and the mapping of its failures.

All failures of providers and networks become the errors of the model port.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from pydantic import SecretStr

from assay.contracts.errors import (
    AssayError,
    ContextOverflowError,
    ModelRefusedError,
    ModelUnavailableError,
)

if TYPE_CHECKING:
    import httpx2


_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_LONGEST_QUOTE = 400
_UNAUTHORIZED = (401, 403)
_TOO_LARGE = 413
_REDIRECTS = 300
_CLIENT_ERRORS = 400
_SERVER_ERRORS = 500
_RATE_LIMITED = 429
_ANOTHER_TIME = (408, _RATE_LIMITED)
# A gateway gave up, and the provider behind it may still write, and charge.
_MAY_BE_CHARGED = (504, 524)

_OVERFLOW_CODES = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "request_too_large",
        "string_above_max_length",
    }
)
_OVERFLOW_WORDS = re.compile(
    r"maximum context length|context (length|window|size|limit)|prompt is too long"
    r"|input token count .* exceeds|exceeds the (available|maximum) (context|number of tokens)"
    r"|too many tokens|reduce the length of",
    re.IGNORECASE,
)
_TOOLS_REFUSED = re.compile(
    r"tool[ _-]choice|tool-call-parser|(does|do) not support tools|tools? (is|are) not supported",
    re.IGNORECASE,
)
"""Messages of vLLM, Ollama, llama.cpp and others."""
_UNPAID = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_error"})
_UNPAID_STATUS = 402
_ADVICE = {
    **dict.fromkeys((301, 302, 303, 307, 308), "check the base URL: the server is elsewhere"),
    404: "check the name of the model and the base URL",
}
# Error types in a stream, where a status was already sent.
_STATUS_OF = {
    "overloaded_error": 529,
    "api_error": 500,
    "timeout_error": 504,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "billing_error": 402,
    "exceed_context_size_error": 400,
    "context_length_exceeded": 400,
    "resource_exhausted": 429,
    "unavailable": 503,
    "internal": 500,
    "deadline_exceeded": 504,
    "invalid_argument": 400,
}


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The address and the key of a provider, and the timeouts of its requests.

    A long answer is not slow: only silence counts.
    """

    base_url: str
    api_key: SecretStr = field(default_factory=lambda: SecretStr(""))
    """Empty for servers that need no key."""
    key_variable: str = ""
    """The environment variable of the key, for hints."""
    connect_timeout_s: float = 10.0
    silence_s: float = 180.0
    """Between any two bytes. Long, because some models think, or read, before the first one."""

    def clean(self, text: str) -> str:
        """Return a provider's text as one short line without the key."""
        secret = self.api_key.get_secret_value()
        one_line = " ".join((text.replace(secret, "[key]") if secret else text).split())
        return one_line if len(one_line) <= _LONGEST_QUOTE else one_line[:_LONGEST_QUOTE] + "…"


def build_http_client(connection: Connection) -> "httpx2.AsyncClient":
    """Build the HTTP client of an SDK; the caller closes it."""
    import httpx2

    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(connection.silence_s, connect=connection.connect_timeout_s),
        # A redirect must not pass the key on to another host.
        follow_redirects=False,
        # Local servers are not reachable through a proxy, and users forget NO_PROXY.
        trust_env=urlsplit(connection.base_url).hostname not in _LOOPBACK,
    )


def explain_failure(
    status: int,
    body: object,
    *,
    name: str,
    connection: Connection,
    headers: Mapping[str, str] | None = None,
    now: Callable[[], datetime] = _now,
) -> AssayError:
    """Build the error for a provider's error response.

    The status is 200 if an error ended the stream; `body` is parsed JSON, or text.
    """
    error = _parse_body(body)
    meant = _status(status, error)
    text = f"{name} answered {meant}: {connection.clean(error.message) or 'no reason given'}"
    if _is_overflow(meant, error):
        return ContextOverflowError(text, hint="send less, or choose a model that reads more")
    if meant == _UNPAID_STATUS or _UNPAID & error.codes:
        return ModelRefusedError(text, hint="see to plan and billing at the provider")
    if meant in _UNAUTHORIZED:
        wrong = f"check the key in {connection.key_variable}"
        missing = "the server wants a key, or another one"
        return ModelRefusedError(text, hint=wrong if connection.key_variable else missing)
    if meant in _ANOTHER_TIME or meant >= _SERVER_ERRORS:
        wait_s = retry_after_s(headers or {}, now=now)
        return ModelUnavailableError(
            text,
            retry_after_s=error.retry_after_s if wait_s is None else wait_s,
            not_charged=status >= _CLIENT_ERRORS and meant not in _MAY_BE_CHARGED,
            rate_limited=meant == _RATE_LIMITED,
        )
    if _TOOLS_REFUSED.search(error.message):
        hint = f'set tool_calls = false under [models."{name}"], or enable tools at the server'
        return ModelRefusedError(text, hint=hint)
    return ModelRefusedError(text, hint=_ADVICE.get(meant, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ErrorBody:
    message: str
    codes: frozenset[str]
    """The error codes in lower case."""
    status: int | None
    retry_after_s: float | None


def _parse_body(body: object) -> _ErrorBody:
    """Parse an error's body; every provider wraps it differently."""
    items = cast("list[object]", body) if isinstance(body, list) else [body]
    outer = items[0] if items else ""
    inner = _table(outer)
    error = inner.get("error")
    if isinstance(error, str):
        inner = {"message": error}
    elif error is not None:
        inner = _table(error)
    names = (inner.get(name) for name in ("code", "type", "status"))
    codes = [str(name).lower() for name in names if name is not None]
    message = inner.get("message") or inner.get("detail") or ("" if inner else outer)
    numbers = [int(code) for code in codes if re.fullmatch(r"[45]\d\d", code)]
    return _ErrorBody(
        message=str(message or ""),
        codes=frozenset(codes),
        status=numbers[0] if numbers else None,
        retry_after_s=_delay_in(inner.get("details")),
    )


def _table(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _delay_in(details: object) -> float | None:
    """Return the delay that Google's APIs put into the body, such as "34.07s"."""
    for detail in cast("list[object]", details) if isinstance(details, list) else ():
        delay = str(_table(detail).get("retryDelay", ""))
        if found := re.fullmatch(r"(\d+(?:\.\d+)?)s", delay):
            return float(found[1])
    return None


def _status(status: int, error: _ErrorBody) -> int:
    if status >= _REDIRECTS:
        return status
    known = (_STATUS_OF[code] for code in error.codes if code in _STATUS_OF)
    # An unknown error in mid-stream: the stream broke off, and a retry may succeed.
    return error.status or next(known, _SERVER_ERRORS)


def _is_overflow(status: int, error: _ErrorBody) -> bool:
    if status in _UNAUTHORIZED or status in _ANOTHER_TIME:
        return False
    if status == _TOO_LARGE or _OVERFLOW_CODES & error.codes:
        return True
    return status < _SERVER_ERRORS and bool(_OVERFLOW_WORDS.search(error.message))


def retry_after_s(
    headers: Mapping[str, str], *, now: Callable[[], datetime] = _now
) -> float | None:
    """Return the delay that a provider requests: milliseconds, seconds or a date."""
    by_name = {name.lower(): value for name, value in headers.items()}
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            wait_s = float(by_name[name]) * unit_s
        except (KeyError, ValueError):
            continue
        if math.isfinite(wait_s):
            return max(wait_s, 0.0)
    try:
        moment = parsedate_to_datetime(by_name["retry-after"])
    except (KeyError, ValueError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max((moment - now()).total_seconds(), 0.0)
