"""Bearer tokens of clients: generated, shown once, and stored only as digests.

Each line of a token file is `NAME sha256:HEX`. Only its owner may read or change it. A change
counts from the next request on, without a restart.
"""

import hashlib
import hmac
import logging
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
from assay.settings.load import Settings

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_LINE: Final = re.compile(rf"({_NAME.pattern}) sha256:([0-9a-f]{{64}})")
_TOKEN_BYTES: Final = 32
_LARGEST_FILE_BYTES: Final = 1 << 20
_log = logging.getLogger(__name__)


def bearer_token(header: str) -> str:
    """Return the token in an `Authorization` header; empty if there is none."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Digests of tokens, by the names of their clients."""

    digests: Mapping[str, str]

    def owner_of(self, token: str) -> str | None:
        """Return the name of the client with this token; None if there is none."""
        # Tokens are long and random, so a plain hash is enough.
        digest = _digest(token)
        owner = None
        # Compare all of them, so that the duration reveals nothing.
        for name, known in self.digests.items():
            if hmac.compare_digest(digest, known):
                owner = name
        return owner

    def __len__(self) -> int:
        return len(self.digests)


class TokenFile:
    """A file of tokens, checked for changes on every use."""

    def __init__(self, path: Path, *, command: str, required: bool = False) -> None:
        """Name a file; `command` adds a token to it, for hints.

        A missing or empty file is an error if tokens are `required`, and has no tokens otherwise.
        """
        self.path = path
        self._command = command
        self._required = required
        self._mark: tuple[int, ...] | None = None
        self._tokens = Tokens({})

    def read(self) -> Tokens:
        """Read the file.

        Raises:
            UsageError: If it cannot be read, other users can access it, or a line is invalid.
        """
        lines = self._lines(missing_ok=not self._required)
        digests = {name: digest for name, digest, _ in lines if name}
        if self._required and not digests:
            raise UsageError(
                f"there is no token in {str(self.path)!r}", hint=f"run `{self._command} NAME`"
            )
        return Tokens(digests)

    def current(self) -> Tokens:
        """Return the tokens; none while the file is unusable, so that no client gets in."""
        # Read before the content, so that the next call detects a write in between.
        mark = _mark(self.path)
        if mark != self._mark:
            self._mark = mark
            try:
                self._tokens = self.read()
            except UsageError as error:
                _log.warning("no token is accepted: %s", error)
                self._tokens = Tokens({})
        return self._tokens

    def add(self, name: str) -> str:
        """Generate a token for a client, store its digest, and return the token.

        Raises:
            UsageError: If the name is invalid or taken, or the file is not usable.
            OSError: If it cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"not a name for a client: {name!r}", hint="use letters, digits, and . _ @ -"
            )
        make_folder(self.path.parent)
        lines = self._lines()
        if any(known == name for known, _, _ in lines):
            raise UsageError(
                f"{str(self.path)!r} has a token for {name!r} already",
                hint="remove it first; the old token ends with it",
            )
        token = f"assay_{secrets.token_urlsafe(_TOKEN_BYTES)}"
        self._write([*(line for _, _, line in lines), f"{name} sha256:{_digest(token)}"])
        return token

    def remove(self, name: str) -> None:
        """Revoke the token of a client.

        Raises:
            UsageError: If there is none, or the file is not usable.
            OSError: If it cannot be written.
        """
        lines = self._lines()
        rest = [line for known, _, line in lines if known != name]
        if len(rest) == len(lines):
            raise UsageError(
                f"there is no token for {name!r}", hint=f"{str(self.path)!r} lists them"
            )
        self._write(rest)

    def _lines(self, *, missing_ok: bool = True) -> list[tuple[str, str, str]]:
        """Return the name, the digest and the text of each line; comments have no name."""
        if missing_ok and _is_missing(self.path):
            return []
        found: list[tuple[str, str, str]] = []
        for number, line in enumerate(read_private(self.path).splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                found.append(("", "", line))
            elif match := _LINE.fullmatch(line.strip()):
                found.append((match[1], match[2], line))
            else:
                raise UsageError(
                    f"line {number} of {str(self.path)!r} is not a name and a digest",
                    hint=f"let `{self._command} NAME` write it",
                )
        return found

    def _write(self, lines: list[str]) -> None:
        write_file(self.path, "".join(f"{line}\n" for line in lines).encode())


def mcp_tokens(settings: Settings) -> TokenFile:
    """Return the token file of the MCP servers."""
    path = settings.mcp.token_file or settings.state_dir / "mcp-tokens"
    return TokenFile(path, command="assay mcp token")


def executor_tokens(path: Path) -> TokenFile:
    """Return a token file of an executor."""
    return TokenFile(path, command="assay executor token", required=True)


def read_private(path: Path) -> str:
    """Read a file that only its owner may read or write.

    Raises:
        UsageError: If it cannot be read, is too large, or other users can access it.
    """
    try:
        # Opened once, so that the checked file is the one that is read.
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(_LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    if status.st_uid not in {os.geteuid(), 0} or stat.S_IMODE(status.st_mode) & 0o077:
        raise UsageError(
            f"{str(path)!r} holds secrets, and others can read or change it",
            hint=f"run `chmod 600 {path}` as its owner",
        )
    try:
        if len(content) <= _LARGEST_FILE_BYTES:
            return content.decode()
    except UnicodeDecodeError:
        pass
    raise UsageError(f"{str(path)!r} is not a text file of this kind")


def _is_missing(path: Path) -> bool:
    """Whether there is no such file. A path that cannot be looked up does not count as missing."""
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", errors="surrogateescape")).hexdigest()


def _mark(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
