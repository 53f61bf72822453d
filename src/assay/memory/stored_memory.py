"""Failure memory over any record store: embeds, searches, ranks and stores.

The scope of a run is its project and its interpreter. `ResilientMemory` lets a run continue
without lessons after a store error, or without a memory.
"""

import hashlib
import json
import os
import platform
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Final, ParamSpec, Protocol, TypeVar

import anyio
import anyio.to_thread

from assay.contracts.errors import AssayError, JournalError, ModelUnavailableError
from assay.contracts.lessons import Failure, Lesson, RecallQuery, Snippet
from assay.contracts.ports import LessonStore
from assay.memory.database import Notice, ignore_notice
from assay.memory.embedding import Embedder, HashedEmbedder
from assay.memory.ranking import CANDIDATES, RULES, choose, looked_for, to_lesson
from assay.memory.snippets import (
    SnippetRecord,
    choose_snippets,
    judged_snippet,
    kept_again,
    retested,
    retired,
    snippet_record_of,
)
from assay.memory.sqlite_store import SqliteStore
from assay.memory.types import (
    FACETS,
    Facet,
    FailureRecord,
    Scope,
    Similar,
    Vectors,
    normal_signature,
    record_of,
)

_STALE_S: Final = 180 * 86_400.0
_CATCH_UP: Final = 128
_MOST_BATCHES: Final = 8
_EXACT: Final = 8

_T = TypeVar("_T")
_P = ParamSpec("_P")


class RecordStore(Protocol):
    """Records as one scope sees them. Blocks; used by one thread at a time.

    Every method may raise `JournalError`.
    """

    def matching(self, signature: str, limit: int) -> tuple[FailureRecord, ...]: ...

    def nearest(
        self, embedder: str, facet: Facet, vector: bytes, limit: int
    ) -> tuple[Similar, ...]: ...

    def learn(self, record: FailureRecord, embedder: str, vectors: Vectors) -> FailureRecord: ...

    def judge(self, ids: Iterable[str], *, helped: bool, now: float) -> None: ...

    def count_uses(self, uses: dict[str, int]) -> None: ...

    def unembedded(self, embedder: str, limit: int) -> tuple[FailureRecord, ...]: ...

    def embed(self, embedder: str, vectors: dict[str, Vectors]) -> None: ...

    def retire_stale(self, before: float) -> int: ...

    def snippets(self) -> tuple[SnippetRecord, ...]:
        """Return the snippets of all scopes, the newest first."""
        ...

    def change_snippet(
        self, id_: str, change: Callable[[SnippetRecord | None], SnippetRecord | None]
    ) -> None:
        """Replace a snippet by the result of a function; None changes nothing."""
        ...

    def close(self) -> None: ...


class StoredMemory:
    """Implements `LessonStore`; opened with `open_stored_memory`."""

    def __init__(
        self,
        store: RecordStore,
        scope: Scope,
        *,
        embedder: Embedder | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._scope = scope
        self._embedder: Embedder = embedder or HashedEmbedder()
        self._now = now
        self._uses: Counter[str] = Counter()
        self._caught_up = False
        # Calls wait in order; the store does not support two threads at the same time.
        self._turn = anyio.Lock()

    async def recall(self, query: RecallQuery) -> tuple[Lesson, ...]:
        if not self._caught_up:
            await self._catch_up()
        exact: tuple[FailureRecord, ...] = ()
        if signature := normal_signature(query.signature):
            exact = await self._do(self._store.matching, signature, _EXACT)
        similar: tuple[Similar, ...] = ()
        text = looked_for(query)
        if text and not any(record.lesson for record in exact):
            similar = await self._similar(RULES[query.moment].facet, text)
        chosen = choose(query, exact, similar)
        self._uses.update(record.id for record in chosen)
        return tuple(to_lesson(record, query.moment) for record in chosen)

    async def learn(self, failure: Failure) -> None:
        record = record_of(failure, self._scope, self._now())
        vectors = (await self._vectors((record,))).get(record.id, {})
        await self._do(self._store.learn, record, self._embedder.name, vectors)

    async def offer(self, query: RecallQuery) -> tuple[Snippet, ...]:
        known = [one for one in await self._do(self._store.snippets) if one.visible_in(self._scope)]
        return tuple(record.snippet for record in choose_snippets(query, known))

    async def keep(self, snippet: Snippet) -> None:
        new = snippet_record_of(snippet, self._scope, self._now())
        if new is not None:
            await self._change_snippet(
                new.id, lambda known: kept_again(known, new) if known else new
            )

    async def tested(self, snippet: str, *, passed: bool) -> None:
        now = self._now()
        await self._change_snippet(
            snippet, lambda known: known and retested(known, passed=passed, now=now)
        )

    async def judge(self, ids: tuple[str, ...], *, helped: bool) -> None:
        if not ids:
            return
        await self._do(partial(self._store.judge, ids, helped=helped, now=self._now()))
        for id_ in {one.id for one in await self._do(self._store.snippets)}.intersection(ids):
            await self._change_snippet(
                id_, lambda known: known and judged_snippet(known, helped=helped)
            )

    async def _change_snippet(
        self, id_: str, change: Callable[[SnippetRecord | None], SnippetRecord | None]
    ) -> None:
        await self._do(self._store.change_snippet, id_, change)

    async def settle(self) -> None:
        """Write the counts of shown lessons."""
        uses, self._uses = self._uses, Counter()
        if uses:
            await self._do(self._store.count_uses, dict(uses))

    async def retire_stale(self) -> None:
        """Retire records that have neither occurred nor helped for half a year."""
        before = self._now() - _STALE_S
        await self._do(self._store.retire_stale, before)
        for snippet in await self._do(self._store.snippets):
            if snippet.last_seen < before and not snippet.retired:
                await self._change_snippet(
                    snippet.id, lambda known: known and retired(known, "stale")
                )

    async def _similar(self, facet: Facet, text: str) -> tuple[Similar, ...]:
        try:
            (vector,) = await self._embedder.embed((text,))
        except ModelUnavailableError:
            # Exact search works without vectors.
            return ()
        return await self._do(self._store.nearest, self._embedder.name, facet, vector, CANDIDATES)

    async def _catch_up(self) -> None:
        """Embed records that were imported or embedded with another embedder."""
        for _ in range(_MOST_BATCHES):
            name = self._embedder.name
            records = await self._do(self._store.unembedded, name, _CATCH_UP)
            vectors = await self._vectors(records)
            if not vectors:
                break
            await self._do(self._store.embed, name, vectors)
        self._caught_up = True

    async def _vectors(self, records: Sequence[FailureRecord]) -> dict[str, Vectors]:
        if not records:
            return {}
        texts = [record.text(facet) for record in records for facet in FACETS]
        try:
            packed = iter(await self._embedder.embed(texts))
        except ModelUnavailableError:
            # The next opening of the memory repeats it.
            return {}
        return {record.id: {facet: next(packed) for facet in FACETS} for record in records}

    async def _do(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        async with self._turn:
            return await anyio.to_thread.run_sync(partial(call, *args, **kwargs))


@asynccontextmanager
async def open_stored_memory(
    open_store: Callable[[], RecordStore], scope: Scope, *, embedder: Embedder | None = None
) -> AsyncGenerator[StoredMemory]:
    """Open a memory over a store, retire stale records, and write all counts at the end."""
    store = await anyio.to_thread.run_sync(open_store)
    try:
        memory = StoredMemory(store, scope, embedder=embedder)
        await memory.retire_stale()
        yield memory
        # A failed write of counts must not fail the run.
        with suppress(JournalError):
            await memory.settle()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(store.close)


def open_sqlite_memory(
    path: Path,
    scope: Scope,
    *,
    embedder: Embedder | None = None,
    on_notice: Notice = ignore_notice,
) -> AbstractAsyncContextManager[StoredMemory]:
    """Open the memory in one SQLite file.

    Raises:
        UsageError: If a newer version wrote it.
        JournalError: If it cannot be opened or created.
    """
    return open_stored_memory(
        partial(SqliteStore, path, scope, on_notice), scope, embedder=embedder
    )


class ResilientMemory:
    """Forwards calls to a memory, and works without it after an error, or if there is none."""

    def __init__(self, memory: LessonStore | None, on_notice: Notice = ignore_notice) -> None:
        self._memory = memory
        self._on_notice = on_notice
        self._noticed = False

    async def recall(self, query: RecallQuery) -> tuple[Lesson, ...]:
        return await self._or_else((), lambda memory: memory.recall(query))

    async def learn(self, failure: Failure) -> None:
        await self._or_else(None, lambda memory: memory.learn(failure))

    async def offer(self, query: RecallQuery) -> tuple[Snippet, ...]:
        return await self._or_else((), lambda memory: memory.offer(query))

    async def keep(self, snippet: Snippet) -> None:
        await self._or_else(None, lambda memory: memory.keep(snippet))

    async def tested(self, snippet: str, *, passed: bool) -> None:
        await self._or_else(None, lambda memory: memory.tested(snippet, passed=passed))

    async def judge(self, ids: tuple[str, ...], *, helped: bool) -> None:
        await self._or_else(None, lambda memory: memory.judge(ids, helped=helped))

    async def _or_else(self, nothing: _T, call: Callable[[LessonStore], Awaitable[_T]]) -> _T:
        if self._memory is None:
            return nothing
        try:
            return await call(self._memory)
        except AssayError as error:
            if not self._noticed:
                self._noticed = True
                self._on_notice(f"going on without the memory of failures: {error}")
            return nothing


_MATTER: Final = ("matplotlib", "numpy", "pandas", "pytest", "scikit-learn", "scipy")
"""Libraries whose versions decide whether a lesson still holds."""
_DIGEST_CHARS: Final = 8
_RELEASE_PARTS: Final = 2


def current_scope(folder: str = "") -> Scope:
    """Return the scope of a run in this folder; without a folder, a scope without project."""
    return Scope(project=project_of(folder) if folder else "", environment=environment_digest())


def project_of(folder: str) -> str:
    """Return the name of a project: its folder name and a digest of the path."""
    path = Path(os.path.expanduser(folder)).resolve()  # noqa: PTH111 - leaves unknown accounts alone
    return f"{path.name}-{_digest(str(path))}"


def environment_digest() -> str:
    """Return what distinguishes interpreters: their release and that of common libraries.

    Patch releases do not count: otherwise lessons would almost never match.
    """
    about = {"python": _release(platform.python_version())}
    for name in _MATTER:
        try:
            about[name] = _release(metadata.version(name))
        except metadata.PackageNotFoundError:
            about[name] = ""
    return _digest(json.dumps(about, sort_keys=True))


def _release(version: str) -> str:
    return ".".join(version.split(".")[:_RELEASE_PARTS])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGEST_CHARS]
