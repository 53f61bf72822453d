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


_LONGEST_QUOTE = 400
_UNAUTHORIZED = (401, 403)
_TOO_LARGE = 413
_REDIRECTS = 300
_CLIENT_ERRORS = 400
_SERVER_ERRORS = 500
_RATE_LIMITED = 429
_ANOTHER_TIME = (408, _RATE_LIMITED)

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
class Answer:
    """A provider's error response."""

    status: int
    """200 if an error ended the stream."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Lookups ignore case."""
    body: object = None
    """Parsed JSON, or text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The provider and the key of a request, so that errors name the one and hide the other."""

    name: str
    secret: SecretStr
    key_variable: str = ""

    def unavailable(self, what: str, *, hint: str = "") -> ModelUnavailableError:
        """Build the error for a missing or incomplete answer."""
        return ModelUnavailableError(f"{self.name} {self._clean(what)}", hint=hint)

    def silent(self, connect_timeout_s: float, silence_s: float) -> ModelUnavailableError:
        """Build the error for a timeout."""
        return self.unavailable(
            f"could not be reached within {connect_timeout_s:g} s, "
            f"or was silent for {silence_s:g} s",
            hint="try again, or give it more time with `models.timeout_s`",
        )

    def unreachable(self, why: BaseException | None) -> ModelUnavailableError:
        """Build the error for a failed or lost connection."""
        return self.unavailable(
            f"cannot be reached, or broke off: {why or 'no reason known'}",
            hint="check the network and the base URL, and that the server runs",
        )

    def garbled(self, why: Exception) -> ModelUnavailableError:
        """Build the error for an answer that cannot be parsed."""
        return self.unavailable(f"sent what cannot be read: {why}")

    def failure(self, answer: Answer, *, now: Callable[[], datetime] = _now) -> AssayError:
        """Build the error for a provider's error response."""
        said = _said(answer.body)
        status = _status(answer.status, said)
        words = f"{self.name} answered {status}: {self._clean(said.message) or 'no reason given'}"
        if _is_overflow(status, said):
            return ContextOverflowError(words, hint="send less, or choose a model that reads more")
        if status == _UNPAID_STATUS or _UNPAID & said.codes:
            return ModelRefusedError(words, hint="see to plan and billing at the provider")
        if status in _UNAUTHORIZED:
            return ModelRefusedError(words, hint=self._key_hint())
        if status in _ANOTHER_TIME or status >= _SERVER_ERRORS:
            wait_s = retry_after_s(answer.headers, now=now)
            return ModelUnavailableError(
                words,
                retry_after_s=said.retry_after_s if wait_s is None else wait_s,
                not_charged=answer.status >= _CLIENT_ERRORS,
                rate_limited=status == _RATE_LIMITED,
            )
        return ModelRefusedError(words, hint=_ADVICE.get(status, ""))

    def _key_hint(self) -> str:
        if not self.key_variable:
            return "the server wants a key, or another one"
        return f"check the key in {self.key_variable}"

    def _clean(self, text: str) -> str:
        secret = self.secret.get_secret_value()
        hidden = text.replace(secret, "[key]") if secret else text
        one_line = " ".join(hidden.split())
        return one_line if len(one_line) <= _LONGEST_QUOTE else one_line[:_LONGEST_QUOTE] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    message: str
    codes: frozenset[str]
    """The error codes in lower case."""
    status: int | None
    retry_after_s: float | None


def _said(body: object) -> _Said:
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
    return _Said(
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


def _status(status: int, said: _Said) -> int:
    if status >= _REDIRECTS:
        return status
    known = (_STATUS_OF[code] for code in said.codes if code in _STATUS_OF)
    # An unknown error in mid-stream: the stream broke off, and a retry may succeed.
    return said.status or next(known, _SERVER_ERRORS)


def _is_overflow(status: int, said: _Said) -> bool:
    if status in _UNAUTHORIZED or status in _ANOTHER_TIME:
        return False
    if status == _TOO_LARGE or _OVERFLOW_CODES & said.codes:
        return True
    return status < _SERVER_ERRORS and bool(_OVERFLOW_WORDS.search(said.message))


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


_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Timeouts for a provider. A long answer is not slow: only silence counts."""

    connect_timeout_s: float = 10.0
    silence_s: float = 180.0
    """Between any two bytes. Long, because some models think, or read, before the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The address and the key of a provider."""

    base_url: str
    api_key: SecretStr = field(default_factory=lambda: SecretStr(""))
    """Empty for servers that need no key."""
    key_variable: str = ""
    """The environment variable of the key, for hints."""
    timeouts: Timeouts = field(default_factory=Timeouts)

    def asked(self, name: str) -> Asked:
        return Asked(name=name, secret=self.api_key, key_variable=self.key_variable)


def build_http_client(connection: Connection) -> "httpx2.AsyncClient":
    """Build the HTTP client of an SDK; the caller closes it."""
    import httpx2

    timeouts = connection.timeouts
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(timeouts.silence_s, connect=timeouts.connect_timeout_s),
        # A redirect must not pass the key on to another host.
        follow_redirects=False,
        # Local servers are not reachable through a proxy, and users forget NO_PROXY.
        trust_env=urlsplit(connection.base_url).hostname not in _LOOPBACK,
    )
