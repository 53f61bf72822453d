"""Open streams: they end when their API key is revoked."""

from collections.abc import Generator
from contextlib import contextmanager

import anyio

from assay.server.db.models import Caller
from assay.server.db.store import Store


class Streams:
    """Registers open streams, and ends those whose caller loses access."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[anyio.CancelScope, Caller] = {}

    @contextmanager
    def opened(self, caller: Caller) -> Generator[anyio.CancelScope]:
        """Return a scope that is cancelled when the caller loses access."""
        with anyio.CancelScope() as scope:
            self._open[scope] = caller
            try:
                yield scope
            finally:
                del self._open[scope]

    async def end_revoked(self) -> None:
        """End the streams of revoked keys, including those that another process has revoked.

        Raises:
            JournalError: If the database does not answer.
        """
        if not self._open:
            return
        revoked = await self._store.revoked_keys()
        # Access without a key ends when the first key is created.
        closed = any(not one.by_key for one in self._open.values()) and await self._store.has_keys()
        for scope, caller in tuple(self._open.items()):
            if caller.key_id in revoked or (closed and not caller.by_key):
                scope.cancel()
