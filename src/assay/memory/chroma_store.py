"""Chroma store of failure records: embedded in a folder, or on a server for several machines.

Only one process at a time can use an embedded folder; that is Chroma's rule. A server has no
transactions, so judgements of one lesson at the same instant may count as one. The SQLite store has
neither limit.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from assay.contracts.errors import JournalError, UsageError, require
from assay.memory.embedding import Embedder
from assay.memory.snippets import SnippetRecord
from assay.memory.stored_memory import StoredMemory, open_stored_memory
from assay.memory.types import (
    Facet,
    FailureRecord,
    Scope,
    Similar,
    Vectors,
    is_transferable,
    judged,
    occurrence_id,
    parts_of,
    seen_again,
)

_RECORDS: Final = "assay-failures"
_OCCURRENCES: Final = "assay-occurrences"
_SNIPPETS: Final = "assay-snippets"
_PREFIX: Final = "assay-vectors-"
"""The prefix of collections with vectors, one for each embedder."""
_NO_VECTOR: Final = [1.0]
"""Chroma requires a vector for every entry."""
_RECORD: Final = TypeAdapter(FailureRecord)
_SNIPPET: Final = TypeAdapter(SnippetRecord)
_FILTERED: Final = (
    "signature", "essence", "language", "project", "shared", "environment", "retired",
    "last_seen", "last_helped",
)  # fmt: skip

Where = Mapping[str, Any]
_P = ParamSpec("_P")
_T = TypeVar("_T")


def open_chroma_memory(
    scope: Scope, *, folder: Path | None = None, url: str = "", embedder: Embedder | None = None
) -> AbstractAsyncContextManager[StoredMemory]:
    """Open a memory in a folder, or on the server at this address.

    Raises:
        MissingExtraError: If Chroma is not installed.
        UsageError: If neither or both are given.
        JournalError: If it cannot be opened or reached.
    """
    if bool(folder) == bool(url):
        raise UsageError("give a folder for Chroma, or the address of a server")
    return open_stored_memory(partial(_open_store, scope, folder, url), scope, embedder=embedder)


def _open_store(scope: Scope, folder: Path | None, url: str) -> "ChromaStore":
    with require("keeping failures in Chroma", extra="chroma"):
        chroma = import_module("chromadb")
    settings = chroma.Settings(anonymized_telemetry=False)
    try:
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return ChromaStore(chroma.PersistentClient(str(folder), settings=settings), scope)
        address = urlsplit(url)
        secure = address.scheme == "https"
        client = chroma.HttpClient(
            host=address.hostname or "localhost",
            port=address.port or (443 if secure else 8000),
            ssl=secure,
            settings=settings,
        )
        return ChromaStore(client, scope)
    except Exception as error:
        raise JournalError(f"the memory in Chroma cannot be opened: {error}") from error


def _translated(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Translate Chroma's exceptions into those that a store may raise."""

    @wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            raise JournalError(f"the memory in Chroma: {error}") from error

    return call


class ChromaStore:
    """The records of one scope, in four collections: records, occurrences, vectors, snippets."""

    def __init__(self, client: Any, scope: Scope) -> None:
        self._client = client
        self._scope = scope
        self._records = self._collection(_RECORDS)
        self._occurrences = self._collection(_OCCURRENCES)
        self._snippets = self._collection(_SNIPPETS)

    def close(self) -> None:
        """Do nothing: every write is already complete."""

    @_translated
    def matching(self, signature: str, limit: int) -> tuple[FailureRecord, ...]:
        essence, _ = parts_of(signature)
        same: list[Where] = [{"signature": signature}]
        if is_transferable(essence):
            same.append({"essence": essence})
        found = self._get(_all_of(*self._visible(), _any_of(*same)))
        found.sort(
            key=lambda one: (
                not one.lesson,
                one.signature != signature,
                one.project != self._scope.project,
                -one.last_seen,
            )
        )
        return tuple(found[:limit])

    @_translated
    def nearest(
        self, embedder: str, facet: Facet, vector: bytes, limit: int
    ) -> tuple[Similar, ...]:
        collection = self._vectors(embedder)
        here = _all_of({"facet": facet}, *self._visible())
        answer = collection.query(
            query_embeddings=[_floats(vector)],
            n_results=limit,
            where=here,
            include=["distances", "metadatas"],
        )
        near = {
            str(about["record"]): 1 - float(distance)
            for about, distance in zip(answer["metadatas"][0], answer["distances"][0], strict=True)
        }
        found = self._of_ids(near)
        similar = (Similar(record=one, likeness=near[one.id]) for one in found)
        return tuple(sorted(similar, key=lambda one: -one.likeness))

    @_translated
    def learn(self, record: FailureRecord, embedder: str, vectors: Vectors) -> FailureRecord:
        occurrence = occurrence_id(record)
        known = self._of_ids((record.id,))
        if known and self._occurrences.get(ids=[occurrence])["ids"]:
            return known[0]
        if known:
            record = seen_again(known[0], record)
        record = self._shared_if_elsewhere(record)
        self._put(record)
        self.embed(embedder, {record.id: vectors})
        about = {"record": record.id, "at": record.last_seen, "run": record.run}
        self._occurrences.upsert(ids=[occurrence], embeddings=[_NO_VECTOR], metadatas=[about])
        return record

    @_translated
    def judge(self, ids: Iterable[str], *, helped: bool, now: float) -> None:
        for record in self._of_ids(dict.fromkeys(ids)):
            self._put(judged(record, helped=helped, now=now))

    @_translated
    def count_uses(self, uses: dict[str, int]) -> None:
        for record in self._of_ids(uses):
            self._put(replace(record, used=record.used + uses[record.id]))

    @_translated
    def retire_stale(self, before: float) -> int:
        old = _all_of(
            {"retired": ""}, {"last_seen": {"$lt": before}}, {"last_helped": {"$lt": before}}
        )
        stale = self._get(old)
        for record in stale:
            self._put(replace(record, retired="stale"))
        return len(stale)

    @_translated
    def unembedded(self, embedder: str, limit: int) -> tuple[FailureRecord, ...]:
        known = self._vectors(embedder).get(where={"facet": "goal"}, include=["metadatas"])
        embedded = {str(about["record"]) for about in known["metadatas"]}
        ids = [id_ for id_ in self._records.get(include=[])["ids"] if id_ not in embedded]
        return tuple(self._of_ids(ids[:limit]))

    @_translated
    def embed(self, embedder: str, vectors: dict[str, Vectors]) -> None:
        collection = self._vectors(embedder)
        for record in self._of_ids(vectors):
            for facet, vector in vectors[record.id].items():
                collection.upsert(
                    ids=[f"{record.id}:{facet}"],
                    embeddings=[_floats(vector)],
                    metadatas=[{**_about(record), "record": record.id, "facet": facet}],
                )

    @_translated
    def snippets(self) -> tuple[SnippetRecord, ...]:
        found = self._snippets.get(include=["documents"])["documents"]
        known = [_SNIPPET.validate_json(text) for text in found]
        return tuple(sorted(known, key=lambda one: (-one.last_seen, one.id)))

    @_translated
    def change_snippet(
        self, id_: str, change: Callable[[SnippetRecord | None], SnippetRecord | None]
    ) -> None:
        found = self._snippets.get(ids=[id_], include=["documents"])["documents"]
        changed = change(_SNIPPET.validate_json(found[0]) if found else None)
        if changed is not None:
            body = _SNIPPET.dump_json(changed).decode()
            self._snippets.upsert(ids=[id_], embeddings=[_NO_VECTOR], documents=[body])

    def _visible(self) -> list[Where]:
        conditions: list[Where] = [
            {"retired": ""},
            _any_of({"shared": True}, {"project": self._scope.project}),
        ]
        if self._scope.environment:
            conditions.append({"environment": {"$in": ["", self._scope.environment]}})
        return conditions

    def _shared_if_elsewhere(self, record: FailureRecord) -> FailureRecord:
        if record.shared or not is_transferable(record.essence):
            return record
        elsewhere = self._get(
            _all_of(
                {"essence": record.essence},
                {"language": record.language},
                {"project": {"$ne": record.project}},
            )
        )
        for other in elsewhere:
            self._put(replace(other, shared=True))
        return replace(record, shared=bool(elsewhere))

    def _put(self, record: FailureRecord) -> None:
        about = _about(record)
        self._records.upsert(
            ids=[record.id],
            embeddings=[_NO_VECTOR],
            metadatas=[about],
            documents=[json.dumps(asdict(record))],
        )
        for collection in self._client.list_collections():
            if collection.name.startswith(_PREFIX):
                held = collection.get(where={"record": record.id}, include=["metadatas"])
                if held["ids"]:
                    renewed = [{**one, **about} for one in held["metadatas"]]
                    collection.update(ids=held["ids"], metadatas=renewed)

    def _get(self, where: Where) -> list[FailureRecord]:
        found = self._records.get(where=where, include=["documents"])
        return [_RECORD.validate_json(text) for text in found["documents"]]

    def _of_ids(self, ids: Iterable[str]) -> list[FailureRecord]:
        known_ids = [id_ for id_ in ids if id_]
        if not known_ids:
            return []
        found = self._records.get(ids=known_ids, include=["documents"])
        return [_RECORD.validate_json(text) for text in found["documents"]]

    def _vectors(self, embedder: str) -> Any:
        name = hashlib.sha256(embedder.encode()).hexdigest()[:16]
        return self._collection(f"{_PREFIX}{name}")

    def _collection(self, name: str) -> Any:
        return self._client.get_or_create_collection(
            name, embedding_function=None, metadata={"hnsw:space": "cosine"}
        )


def _about(record: FailureRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in _FILTERED}


def _floats(vector: bytes) -> list[float]:
    # A zero vector has no direction, and its cosine is undefined.
    numbers = [float(number) for number in array("b", vector)]
    return numbers if any(numbers) else [1e-6] * len(numbers)


def _all_of(first: Where, *more: Where) -> Where:
    return {"$and": [first, *more]} if more else first


def _any_of(first: Where, *more: Where) -> Where:
    return {"$or": [first, *more]} if more else first
