"""Signing key of certificates: created on first use, readable for its owner only."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from assay.contracts.errors import JournalError, UsageError, require
from assay.files import is_private, make_folder, sync_folder, write_draft

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_FILE: Final = "ed25519.pem"
_FEATURE: Final = "a signed certificate"
_EXTRA: Final = "agent"


class SigningKey:
    """An Ed25519 private key."""

    def __init__(self, key: "Ed25519PrivateKey") -> None:
        self._key = key

    @property
    def public(self) -> str:
        """Return the public key, 32 bytes in hexadecimal."""
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, content: bytes) -> str:
        """Return the signature, 64 bytes in hexadecimal."""
        return self._key.sign(content).hex()


def is_signed_by(public: str, signature: str, content: bytes) -> bool:
    """Return whether this key signed the content.

    Raises:
        MissingExtraError: If the library for it is not installed.
    """
    with require(_FEATURE, extra=_EXTRA):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (
            Ed25519PublicKey,
        )
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError):
        return False
    return True


def signing_key(state_dir: Path) -> SigningKey:
    """Return this user's key on this machine; the first call creates it.

    Raises:
        MissingExtraError: If the library for it is not installed.
        UsageError: If other users could have read the key.
        JournalError: If it cannot be read or written.
    """
    path = _path(state_dir)
    try:
        if not path.exists():
            make_folder(path.parent)
            _make(path)
        return _load(path)
    except OSError as error:
        raise JournalError(f"the key {str(path)!r} cannot be used: {error.strerror}") from error


def public_key(state_dir: Path) -> str | None:
    """Return this user's public key, without creating one; None if there is none."""
    try:
        return _load(_path(state_dir)).public
    except OSError:
        return None


def _path(state_dir: Path) -> Path:
    return state_dir / "keys" / _FILE


def _make(path: Path) -> None:
    with require(_FEATURE, extra=_EXTRA):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (
            Ed25519PrivateKey,
        )
    content = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    draft = write_draft(path.parent, content)
    try:
        # Unlike a rename, this keeps the key of a concurrent process.
        with suppress(FileExistsError):
            os.link(draft, path)
        sync_folder(path.parent)
    finally:
        draft.unlink()


def _load(path: Path) -> SigningKey:
    # Opened once, so that the checked file is the one that is read.
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        content = file.read()
    if not is_private(status):
        raise UsageError(
            f"the key {str(path)!r} is not yours alone, so its signatures say nothing",
            hint="remove it; the next run makes a new one",
        )
    with require(_FEATURE, extra=_EXTRA):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (
            Ed25519PrivateKey,
        )
        from cryptography.hazmat.primitives.serialization import (
            load_pem_private_key,
        )
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise _damaged(path) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _damaged(path)
    return SigningKey(key)


def _damaged(path: Path) -> JournalError:
    return JournalError(
        f"{str(path)!r} is not a key of Ed25519", hint="remove it; the next run makes a new one"
    )
