"""Reads the `.env` of an untrusted project: only a few names are allowed."""

import os
import re
import stat
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_NAME: Final = ".env"
_LARGEST_BYTES: Final = 1 << 16
_LINE: Final = re.compile(
    r"""\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*
    (?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>[^']*)'|(?P<bare>[^\s#][^\n]*?|))
    \s*(?:\s\#.*)?""",
    re.VERBOSE | re.ASCII,
)
_OWN: Final = "ASSAY_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectEnv:
    """Allowed and ignored entries of a project's `.env`."""

    values: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    ignored: tuple[str, ...] = ()
    """Names of Assay's own settings that the file may not set."""


def read_project_env(folder: Path, allowed: Collection[str]) -> ProjectEnv:
    """Read the allowed names; a missing, binary or oversized file has none."""
    values: dict[str, str] = {}
    ignored: dict[str, None] = {}
    for line in _text(folder / _NAME).splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        name = match["name"]
        value = match["double"] or match["single"] or match["bare"] or ""
        if name in allowed and value.strip():
            values[name] = value.strip()
        elif name.startswith(_OWN) and name not in allowed:
            ignored[name] = None
    return ProjectEnv(values=values, ignored=tuple(ignored))


def _text(path: Path) -> str:
    # A link could point to a file that the author of the project cannot read.
    with suppress(OSError, UnicodeDecodeError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST_BYTES:
                return file.read(_LARGEST_BYTES).decode("utf-8-sig")
    return ""
