"""Finds records for a person: by the words themselves first, then by likeness."""

from assay.memory.embedding import HashedEmbedder, hashed, pack
from assay.memory.records import FACETS, FailureRecord, Similar, Vectors
from assay.memory.sqlite_store import SqliteStore

_LEAST_LIKENESS = 0.2
_BATCH = 500


def search(store: SqliteStore, text: str, limit: int) -> tuple[Similar, ...]:
    """Return the records that hold the text, or are most like it, the best first."""
    embed_all(store)
    found: dict[str, Similar] = {
        record.id: Similar(record=record, likeness=1.0) for record in store.holding(text, limit)
    }
    vector = pack(hashed(text))
    for facet in FACETS:
        for near in store.nearest(HashedEmbedder.name, facet, vector, limit):
            known = found.get(near.record.id)
            if near.likeness >= _LEAST_LIKENESS and (
                known is None or known.likeness < near.likeness
            ):
                found[near.record.id] = near
    ranked = sorted(found.values(), key=lambda near: (-near.likeness, -near.record.last_seen))
    return tuple(ranked[:limit])


def embed_all(store: SqliteStore) -> None:
    """Give every record that lacks one a vector of the kind that needs no model."""
    while records := store.unembedded(HashedEmbedder.name, _BATCH):
        store.embed(HashedEmbedder.name, {record.id: _vectors(record) for record in records})


def _vectors(record: FailureRecord) -> Vectors:
    return {facet: pack(hashed(record.text(facet))) for facet in FACETS}
