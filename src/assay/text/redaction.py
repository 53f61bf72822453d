"""Redaction of secrets in text: keys, tokens, passwords, private keys.

In doubt, redact: a lesson survives a hidden word, but a leaked key is lost.
"""

import re
from typing import Final

HIDDEN: Final = "[redacted]"

_PEM: Final = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL)
_KNOWN: Final = re.compile(
    r"\b(?:"
    r"sk-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic, OpenRouter, DeepSeek
    r"|gsk_[A-Za-z0-9]{16,}|e2b_[A-Za-z0-9]{16,}"
    r"|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|AKIA[0-9A-Z]{12,}|ASIA[0-9A-Z]{12,}"
    r"|AIza[0-9A-Za-z_-]{30,}|ya29\.[0-9A-Za-z_-]{20,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|hf_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{20,}"
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{10,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"  # JSON web tokens
    r")"
)
_IN_ADDRESS: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^\s/@'\"]+@", re.IGNORECASE)
_LOGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://[^\s:@'\"/]*:|\b(?!mailto:)[\w.-]+:)[^\s:@'\"]+@(?=[\w\[])",
    re.IGNORECASE,
)
"""`user:password@host`, also where the password has a slash."""
_HEADER: Final = re.compile(
    r"(?P<name>\b(?:authorization|proxy-authorization|cookie|set-cookie|x-api-key)\b[\"']?\s*[:=]\s*)"
    r"[^\r\n]+",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(r"\b(?P<name>bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_ASSIGNED: Final = re.compile(
    r"(?P<name>[\"']?\b[\w.-]*(?:passw(?:or)?d|passphrase|pwd|\bpw|[_-]pass|secret|token|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|credential)s?\b[\"']?\s*(?::=|=>|[:=](?!=))\s*)"
    r"(?P<value>[rbuf]{0,2}\"[^\"\n]*\"|[rbuf]{0,2}'[^'\n]*'|[^\s,;)}\]\"']+)",
    re.IGNORECASE,
)
_OPTION: Final = re.compile(
    r"(?P<name>--?(?:password|passwd|token|secret|api-key|access-key)[ =])(?P<value>\S+)",
    re.IGNORECASE,
)
_LONG: Final = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{40,}={0,2}(?![\w+/=-])")
_CODE_VALUE: Final = re.compile(
    r"(?:None|null|True|False|str|bytes|int|SecretStr|[A-Za-z_][\w.]*[\[(].*|\d{1,4}|[\"']{2})"
)
"""Values that are no secrets, although their names look like one: types, calls, null values."""


def redact(text: str) -> str:
    """Return the text with everything redacted that looks like a secret."""
    text = _PEM.sub(HIDDEN, text)
    text = _HEADER.sub(rf"\g<name>{HIDDEN}", text)
    text = _BEARER.sub(rf"\g<name> {HIDDEN}", text)
    text = _KNOWN.sub(HIDDEN, text)
    text = _IN_ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _LOGIN.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _OPTION.sub(_hide_value, text)
    text = _ASSIGNED.sub(_hide_value, text)
    return _LONG.sub(_hide_if_random, text)


def _hide_value(match: re.Match[str]) -> str:
    value = match["value"]
    if _CODE_VALUE.fullmatch(value) or value.startswith(HIDDEN):
        return match[0]
    return f"{match['name']}{HIDDEN}"


def _hide_if_random(match: re.Match[str]) -> str:
    """Redact a long word of mixed characters; long names and paths lack digits or capitals."""
    word = match[0]
    mixed = (
        any(letter.isdigit() for letter in word)
        and any(letter.isupper() for letter in word)
        and any(letter.islower() for letter in word)
    )
    digest = re.fullmatch(r"[0-9a-fA-F]+", word) is not None
    return HIDDEN if mixed or digest else word
