"""Failure memories of all users; each user can access only their own."""

from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from anyio import to_thread

from assay.memory.database import MEMORY
from assay.memory.history import History, history_of
from assay.memory.ranking import search, search_snippets
from assay.memory.snippets import SnippetRecord
from assay.memory.sqlite_store import SqliteStore
from assay.memory.types import FailureRecord
from assay.server.auth import settings_of
from assay.server.errors import not_found
from assay.settings.load import Settings

T = TypeVar("T")
Remembered = FailureRecord | SnippetRecord


class Memories:
    """Opens the failure memory of a user."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def list(self, user: str, query: str, limit: int) -> tuple[Remembered, ...]:
        """Return the entries that fit the query best; without a query, the newest."""

        def read(store: SqliteStore) -> tuple[Remembered, ...]:
            if not query.strip():
                return (*store.records(limit=limit), *store.snippets())[:limit]
            failures = [near.record for near in search(store, query, limit)]
            skills = [record for record, _ in search_snippets(store.snippets(), query, limit)]
            return (*failures, *skills)[:limit]

        return await self._with(user, read, ())

    async def find(self, user: str, record_id: str) -> Remembered:
        """Return one entry.

        Raises:
            RequestRejectedError: If the user has no entry with that id.
        """

        def read(store: SqliteStore) -> Remembered | None:
            known = (*store.find(record_id), *store.snippets())
            return next((one for one in known if one.id == record_id), None)

        found = await self._with(user, read, None)
        if found is None:
            raise not_found("memory", record_id)
        return found

    async def forget(self, user: str, record_id: str) -> None:
        """Delete one entry for good; raises like `find`."""
        await self.find(user, record_id)
        await self._with(user, lambda store: store.forget([record_id]), 0)

    async def stats(self, user: str) -> History:
        """Count entries, and how they were used."""

        def read(store: SqliteStore) -> History:
            return history_of(store.records(), store.occurrences(), store.snippets())

        return await self._with(user, read, history_of((), ()))

    async def _with(self, user: str, work: Callable[[SqliteStore], T], nothing: T) -> T:
        path = settings_of(self._settings, user).state_dir / MEMORY

        def carry_out() -> T:
            if not path.exists():
                return nothing
            with closing(SqliteStore(path, None)) as store:
                return work(store)

        return await to_thread.run_sync(carry_out)
