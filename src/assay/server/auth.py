"""Authentication and users: API keys, stored as digests, and the local user without a key.

Each user has a folder for sessions, runs and memory, apart from other users'.
"""

import hashlib
import hmac
import re
import secrets
import time
from pathlib import Path
from typing import Any, Final

from assay.auth.tokens import bearer_token
from assay.contracts.errors import UsageError
from assay.server.db.models import LOCAL, Caller, KeyRecord, Quota, Role
from assay.server.db.store import Store
from assay.server.errors import RequestRejectedError
from assay.settings.load import Settings
from assay.settings.sections import QuotaSettings
from assay.wiring import settings_apart

_USER: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
USERS: Final = "users"


def check_user(name: str) -> str:
    """Return the name if it is a valid user name.

    Raises:
        UsageError: If it is not.
    """
    if not _USER.fullmatch(name):
        raise UsageError(
            f"not a name for a user: {name!r}",
            hint="use up to 64 small letters, digits, - and _, a letter or digit first",
        )
    return name


def folder_of(state_dir: Path, user: str) -> Path:
    """Return the folder of a user."""
    return state_dir / USERS / check_user(user)


def settings_of(settings: Settings, user: str) -> Settings:
    """Return the settings for all work of this user."""
    return settings_apart(settings, folder_of(settings.state_dir, user))


BOOTSTRAP: Final = "bootstrap"
"""Id of the key from the settings, for its usage counts."""
_PREFIX: Final = "assay_"
_KEY_BYTES: Final = 32
_ID_BYTES: Final = 6
_LONGEST_NAME: Final = 80


class ApiKeys:
    """Creates and revokes API keys."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(
        self, *, user: str, name: str, role: Role = "user", **quota: Any
    ) -> tuple[KeyRecord, str]:
        """Create an API key and return it this once; only its digest is stored.

        `quota` has the fields of `Quota`; without a value, the default of the settings applies.

        Raises:
            UsageError: If a name is invalid.
        """
        title = name.strip()
        if not title or len(title) > _LONGEST_NAME or not title.isprintable():
            raise UsageError(
                f"not a name for a key: {name!r}", hint=f"up to {_LONGEST_NAME} characters"
            )
        record = KeyRecord(
            id=secrets.token_hex(_ID_BYTES),
            user=check_user(user),
            name=title,
            role=role,
            created_at=time.time(),
            **quota,
        )
        key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
        await self._store.add_key(record, digest_of(key))
        return record, key

    async def list(self) -> tuple[KeyRecord, ...]:
        return await self._store.keys()

    async def revoke(self, key_id: str) -> None:
        """Revoke an API key, from its next request on.

        Raises:
            RequestRejectedError: If no valid key has that id.
        """
        if not await self._store.revoke_key(key_id, time.time()):
            raise RequestRejectedError(
                f"there is no key {key_id!r} that works",
                why="not-found",
                hint="`assay keys list` shows them",
            )


class Authenticator:
    """Identifies callers; denies access by default."""

    def __init__(
        self, store: Store, quota: QuotaSettings, *, open_to_local: bool, api_key: str = ""
    ) -> None:
        self._store = store
        self._quota = quota
        self._bootstrap = digest_of(api_key) if api_key.strip() else ""
        """Digest of an admin key that is not in the database; empty without one."""
        self._open_to_local = open_to_local
        """Whether requests need no key as long as none was ever created."""

    async def identify(self, authorization: str) -> Caller:
        """Return the caller for an authorization header.

        Raises:
            RequestRejectedError: If it has no valid key, and one is required.
        """
        key = bearer_token(authorization)
        if key and self._bootstrap and hmac.compare_digest(digest_of(key), self._bootstrap):
            return self._admin(BOOTSTRAP)
        found = await self._store.key_with(digest_of(key)) if key else None
        if found is not None and found.revoked_at is None:
            return self._holder(found)
        if self._open_to_local and not self._bootstrap and not await self._store.has_keys():
            return self._admin(LOCAL)
        raise RequestRejectedError(
            "invalid or revoked API key" if key else "missing API key",
            why="unauthorized",
            hint="send `Authorization: Bearer KEY`; `assay keys create` makes one",
        )

    async def revoked(self, authorization: str) -> KeyRecord | None:
        """Return the revoked key in this header, if there is one."""
        key = bearer_token(authorization)
        found = await self._store.key_with(digest_of(key)) if key else None
        return found if found and found.revoked_at is not None else None

    def _admin(self, key_id: str) -> Caller:
        """Return the admin of this machine, with the default quota."""
        return Caller(
            user=LOCAL,
            role="admin",
            key_id=key_id,
            key_name="API_KEY" if key_id == BOOTSTRAP else "",
            quota=Quota(**self._quota.model_dump()),
            by_key=key_id == BOOTSTRAP,
        )

    def _holder(self, key: KeyRecord) -> Caller:
        usual = self._quota.model_dump()
        own = {name: getattr(key, name) for name in usual}
        quota = Quota(**(usual | {name: value for name, value in own.items() if value is not None}))
        return Caller(
            user=key.user,
            role=key.role,
            key_id=key.id,
            key_name=key.name,
            quota=quota,
            by_key=True,
        )


def digest_of(key: str) -> str:
    """Return the stored digest of a key. Keys are long and random, so a plain hash is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
