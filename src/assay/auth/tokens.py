"""Tokens of executor clients: generated, shown once, and stored only as digests.

A token file is read again after each change, without a restart.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from assay.contracts.errors import UsageError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_LINE: Final = re.compile(r"(\S+)\s+([0-9a-f]{64})")
_TOKEN_BYTES: Final = 32
_LARGEST_FILE_BYTES: Final = 1 << 20


def bearer_token(header: str) -> str:
    """Return the token in an `Authorization` header; empty if there is none."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class Tokens:
    """Digests of tokens, with the names of their clients."""

    def __init__(self, digests: dict[str, bytes]) -> None:
        self._digests = digests

    def owner_of(self, token: str) -> str | None:
        """Return the name of the client with this token; None if there is none."""
        digest = _digest(token)
        owner = None
        # Compare all of them, so that the duration reveals nothing.
        for name, known in self._digests.items():
            if hmac.compare_digest(digest, known):
                owner = name
        return owner

    def __len__(self) -> int:
        return len(self._digests)


def read_tokens(path: Path) -> Tokens:
    """Read a token file.

    Raises:
        UsageError: If it cannot be read, has no token, or other users can change it.
    """
    digests: dict[str, bytes] = {}
    for number, line in enumerate(read_private(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if not match or not _NAME.fullmatch(match[1]):
            raise UsageError(
                f"line {number} of {str(path)!r} is not a name and a digest",
                hint="let `assay executor token NAME` write it",
            )
        digests[match[1]] = bytes.fromhex(match[2])
    if not digests:
        raise UsageError(
            f"there is no token in {str(path)!r}", hint="run `assay executor token NAME`"
        )
    return Tokens(digests)


def add_token(path: Path, name: str) -> str:
    """Generate a token for a client, store its digest, and return the token.

    Raises:
        UsageError: If the name is invalid or taken, or the file cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"not a name for a client: {name!r}", hint="use letters, digits, and . _ @ -"
        )
    known = read_private(path) if path.exists() else ""
    if any(line.split()[:1] == [name] for line in known.splitlines()):
        raise UsageError(
            f"{str(path)!r} has a token for {name!r} already",
            hint="remove its line first; the old token ends with it",
        )
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    line = f"{name} {_digest(token).hex()}\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        with os.fdopen(descriptor, "a") as file:
            file.write(line)
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}") from error
    return token


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
        raise UsageError(f"{str(path)!r} is open to others", hint=f"run `chmod 600 {path}`")
    try:
        if len(content) <= _LARGEST_FILE_BYTES:
            return content.decode()
    except UnicodeDecodeError:
        pass
    raise UsageError(f"{str(path)!r} is not a text file of this kind")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", errors="surrogateescape")).digest()


Content = TypeVar("Content")

_log = logging.getLogger(__name__)


class Reread(Generic[Content]):
    """Content of a file, checked for changes on every use.

    Raises:
        UsageError: If the file cannot be used at the start.
    """

    def __init__(self, path: Path, read: Callable[[Path], Content], *, nothing: Content) -> None:
        self._path = path
        self._read = read
        self._nothing = nothing
        self._mark = _mark(path)
        self._content = read(path)

    def current(self) -> Content:
        """Return the content; empty while the file is unusable, so that no client gets in."""
        # Read before the content, so that the next call detects a write in between.
        mark = _mark(self._path)
        if mark != self._mark:
            self._mark = mark
            try:
                self._content = self._read(self._path)
            except UsageError as error:
                _log.warning("no token is accepted: %s", error)
                self._content = self._nothing
        return self._content


def _mark(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
