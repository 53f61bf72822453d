"""Search in the memory for a person: exact text first, then similarity."""

from collections.abc import Iterable

from assay.memory.embedding import HashedEmbedder, hashed, pack, similarity
from assay.memory.snippets import SkillRecord, text_of
from assay.memory.sqlite_store import SqliteStore
from assay.memory.types import FACETS, FailureRecord, Similar, Vectors

_LEAST_LIKENESS = 0.2
_BATCH = 500


def search(store: SqliteStore, text: str, limit: int) -> tuple[Similar, ...]:
    """Return the records that contain the text or are similar to it, the best first."""
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


def search_skills(
    known: Iterable[SkillRecord], text: str, limit: int
) -> tuple[tuple[SkillRecord, float], ...]:
    """Return the helpers that contain the text or are similar to it, with their similarity."""
    ranked: list[tuple[SkillRecord, float]] = []
    for record in known:
        whole = f"{text_of(record)}\n{record.source}"
        holds = text.lower() in whole.lower()
        ranked.append((record, 1.0 if holds else similarity(text, text_of(record))))
    ranked.sort(key=lambda pair: (-pair[1], -pair[0].last_seen))
    return tuple(pair for pair in ranked if pair[1] >= _LEAST_LIKENESS)[:limit]


def embed_all(store: SqliteStore) -> None:
    """Add a vector of the embedder without a model to every record that lacks one."""
    while records := store.unembedded(HashedEmbedder.name, _BATCH):
        store.embed(HashedEmbedder.name, {record.id: _vectors(record) for record in records})


def _vectors(record: FailureRecord) -> Vectors:
    return {facet: pack(hashed(record.text(facet))) for facet in FACETS}
