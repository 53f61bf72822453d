"""Secrets that configuration and data files assign to a name: passwords, tokens, logins.

Source code is not searched: it has such names with values of any kind.
"""

import re
from pathlib import PurePosixPath
from typing import Final

_SUFFIXES: Final = frozenset(
    {
        *(".json", ".jsonc", ".json5", ".yaml", ".yml", ".toml", ".xml", ".plist", ".properties"),
        *(".ini", ".cfg", ".conf", ".cnf", ".config", ".env", ".tfvars", ".vars", ".local"),
        *(".txt", ".sh", ".sql", ".service", ""),
    }
)
_WORDS: Final = (b"passw", b"pwd", b"secret", b"token", b"key", b"_pass", b"://")
_VALUE: Final = rb"(?P<quote>[\"']?)(?P<value>[^\s\"',;<>{}\[\]]{8,512})"
_ASSIGNED: Final = re.compile(
    rb"(?P<name>passw(?:or)?d|passphrase|pwd|_pass|secret(?:[_-]?(?:access)?[_-]?key)?|token"
    rb"|api[_-]?key|access[_-]?key|auth[_-]?key|private[_-]?key|encryption[_-]?key)"
    rb"[\"']?(?:\s*(?::=|=>|[:=])\s*|\s*>\s*)" + _VALUE,
    re.IGNORECASE,
)
_LOGIN: Final = re.compile(
    rb"[a-z][a-z0-9+.-]{1,30}://[^\s:@/\"'<>]{0,100}:(?P<value>[^\s@\"'<>]{6,200})@[\w\[]",
    re.IGNORECASE,
)
_BEFORE_NAME: Final = 32
_NO_SECRET: Final = re.compile(
    rb"(?:public|next|prev|page|continu\w*|cursor|sync|csrf|xsrf|hash(?:ed)?|type|special|added|pad|mask"
    rb"|idempotency|cache|sort|primary|foreign|partition)[\w.-]{0,12}$",
    re.IGNORECASE,
)
_PASSWORD: Final = re.compile(rb"passw|pwd|_pass|passphrase", re.IGNORECASE)
_MADE_UP: Final = re.compile(
    rb"example|dummy|fake|sample|change[_-]?me|placeholder|redacted|your[_-]|abcdef|123456|xxxx|\*\*\*|\$\{|\$\(|\{\{|%\(",
    re.IGNORECASE,
)
_TOKEN: Final = re.compile(rb"[A-Za-z0-9+/_.~=-]{20,512}")
_HEX: Final = re.compile(rb"[0-9a-f]{32,128}|[0-9A-F]{32,128}")
_LEAST_PASSWORD: Final = 10
_LEAST_DISTINCT: Final = 8


def assigned_secret(path: PurePosixPath, content: bytes) -> bool:
    """Return whether a configuration or data file assigns a likely secret to a secret's name."""
    if path.suffix.lower() not in _SUFFIXES or b"\0" in content:
        return False
    lowered = content.lower()
    if not any(word in lowered for word in _WORDS):
        return False
    if any(_is_password(found["value"]) for found in _LOGIN.finditer(content)):
        return True
    return any(_is_secret(content, found) for found in _ASSIGNED.finditer(content))


def _is_secret(content: bytes, found: re.Match[bytes]) -> bool:
    before = content[max(0, found.start() - _BEFORE_NAME) : found.start()]
    if _NO_SECRET.search(before):
        return False
    value = found["value"]
    return _is_password(value) if _PASSWORD.search(found["name"]) else _is_random(value)


def _is_password(value: bytes) -> bool:
    """Return whether a value has letters of both cases and digits; most words have not."""
    return len(value) >= _LEAST_PASSWORD and _is_mixed(value)


def _is_random(value: bytes) -> bool:
    if not _TOKEN.fullmatch(value):
        return False
    return _is_mixed(value) or (
        _HEX.fullmatch(value) is not None and not _MADE_UP.search(value) and _is_varied(value)
    )


def _is_mixed(value: bytes) -> bool:
    kinds = (rb"[a-z]", rb"[A-Z]", rb"[0-9]")
    mixed = all(re.search(kind, value) for kind in kinds)
    return mixed and _is_varied(value) and not _MADE_UP.search(value)


def _is_varied(value: bytes) -> bool:
    return len(set(value)) >= _LEAST_DISTINCT
