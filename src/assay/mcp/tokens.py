"""Tokens of MCP clients: shown once, stored only as hashes, compared in constant time.

Each line of the file is `NAME sha256:HEX`. Only its owner may read or change it.
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from assay.contracts.errors import UsageError
from assay.files import make_folder, write_file

TOKEN_FILE: Final = "mcp-tokens"  # noqa: S105 - the name of a file
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LINE: Final = re.compile(rf"({_NAME.pattern}) sha256:([0-9a-f]{{64}})")
_TOKEN_BYTES: Final = 32
_LONGEST: Final = 512


@dataclass(frozen=True, slots=True)
class Tokens:
    """Valid tokens, by the names of their holders."""

    hashes: Mapping[str, str]

    def __bool__(self) -> bool:
        return bool(self.hashes)

    def holder(self, token: str) -> str:
        """Return the holder of this token; empty if it is invalid."""
        # Tokens are long and random, so a plain hash is enough.
        offered = _hash(token) if len(token) <= _LONGEST else ""
        found = ""
        for name, kept in self.hashes.items():  # Compare all of them, for constant time.
            if hmac.compare_digest(offered, kept):
                found = name
        return found


def load_tokens(path: Path) -> Tokens:
    """Read a token file; a missing file has no tokens.

    Raises:
        UsageError: If other users can read or change it, or a line is invalid.
    """
    try:
        # Opened once, so that the checked file is the one that is read.
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            lines = file.read().decode("ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return Tokens({})
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    hashes: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise UsageError(
                f"{str(path)!r}, line {number}: not a token's name and hash",
                hint="`assay mcp token NAME` writes this file",
            )
        hashes[found[1]] = found[2]
    return Tokens(hashes)


def add_token(path: Path, name: str) -> str:
    """Create a token for this name, and return it; only its hash is stored.

    Raises:
        UsageError: If the name is taken or invalid, or the file is not usable.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"not a name for a token: {name!r}", hint="use letters, digits, . _ and -")
    known = load_tokens(path)
    if name in known.hashes:
        raise UsageError(
            f"there is a token for {name!r} already",
            hint=f"`assay mcp token {name} --remove` takes it back",
        )
    token = f"assay_{secrets.token_urlsafe(_TOKEN_BYTES)}"
    _save(path, {**known.hashes, name: _hash(token)})
    return token


def remove_token(path: Path, name: str) -> None:
    """Revoke a token.

    Raises:
        UsageError: If no token has this name, or the file is not usable.
    """
    known = load_tokens(path)
    if name not in known.hashes:
        raise UsageError(f"there is no token for {name!r}", hint="`assay mcp token` lists them")
    _save(path, {each: kept for each, kept in known.hashes.items() if each != name})


def _save(path: Path, hashes: Mapping[str, str]) -> None:
    make_folder(path.parent)
    lines = "".join(f"{name} sha256:{kept}\n" for name, kept in sorted(hashes.items()))
    write_file(path, lines.encode("ascii"))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", errors="surrogateescape")).hexdigest()


def _check_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise UsageError(
            f"{str(path)!r} says who may use the servers, and others can read or change it",
            hint=f"run `chmod 600 {path}` as its owner",
        )
