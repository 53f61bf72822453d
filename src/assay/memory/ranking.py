"""Ranking of lessons and failures: for a run, and for a person who searches.

A run is shown a few lessons at one moment. A search finds exact text first, then similar text.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from assay.contracts.lessons import Lesson, RecallPoint, RecallQuery
from assay.memory.embedding import HashedEmbedder, hashed, pack, similarity
from assay.memory.lesson_text import one_line, without_instructions
from assay.memory.snippets import SnippetRecord, text_of
from assay.memory.sqlite_store import SqliteStore
from assay.memory.types import (
    FACETS,
    Facet,
    FailureRecord,
    Similar,
    Vectors,
    is_transferable,
    parts_of,
)
from assay.text.redaction import redact


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The facet to compare, the least similarity, and the number of lessons."""

    facet: Facet
    least_likeness: float
    most: int


RULES: Final[dict[RecallPoint, Rule]] = {
    "plan": Rule(facet="goal", least_likeness=0.3, most=3),
    "action": Rule(facet="action", least_likeness=0.55, most=1),
    "failure": Rule(facet="failure", least_likeness=0.6, most=1),
}
CANDIDATES: Final = 24
"""Number of records to examine: enough that records without lessons do not displace others."""


def looked_for(query: RecallQuery) -> str:
    """Return the text to compare records with; empty if a comparison means nothing."""
    match query.moment:
        case "plan":
            return f"{query.goal} {query.text}".strip()
        case "action":
            return query.text
        case "failure":
            if not is_transferable(parts_of(query.signature)[0]):
                return ""
            return f"{parts_of(query.signature)[0]} {query.text}".strip()


def choose(
    query: RecallQuery, exact: Iterable[FailureRecord], similar: Iterable[Similar]
) -> tuple[FailureRecord, ...]:
    """Return the records to show, the best first: the same failure before similar ones.

    Among equals, the lesson with the higher score comes first. No lesson appears twice.
    """
    rule = RULES[query.moment]
    ranked = [(2 + record.worth, record) for record in exact if _is_about_the_same(query, record)]
    ranked += [
        (found.likeness * (1 + found.record.worth) / 2, found.record)
        for found in similar
        if found.likeness >= rule.least_likeness
    ]
    ranked.sort(key=lambda pair: (-pair[0], -pair[1].last_seen, pair[1].id))
    chosen: dict[str, FailureRecord] = {}
    for _, record in ranked:
        text = saying(record, query.moment)
        if text and len(chosen) < rule.most:
            chosen.setdefault(text, record)
    return tuple(chosen.values())


def _is_about_the_same(query: RecallQuery, record: FailureRecord) -> bool:
    """Return whether equal signatures mean equal failures: a failed assertion is no evidence."""
    return is_transferable(record.essence) or (
        similarity(query.goal, record.goal) >= RULES["plan"].least_likeness
    )


def to_lesson(record: FailureRecord, moment: RecallPoint) -> Lesson:
    """Build the lesson of a record with its evidence."""
    judged = record.helped + record.harmed
    success = f"; helped {record.helped} of {judged} times" if judged else ""
    times = "once" if record.seen == 1 else f"{record.seen} times"
    where = f", last in run {record.run}" if record.run else ""
    return Lesson(
        id=record.id,
        # Earlier versions stored records with fewer checks.
        text=without_instructions(redact(saying(record, moment))),
        evidence=f"seen {times}{where}{success}",
    )


def saying(record: FailureRecord, moment: RecallPoint) -> str:
    """Return the line to show; empty if there is none for this moment."""
    if record.lesson:
        return record.lesson
    if moment == "action":
        return one_line(f"code like this failed with: {record.message or record.signature}")
    return ""


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


def search_snippets(
    known: Iterable[SnippetRecord], text: str, limit: int
) -> tuple[tuple[SnippetRecord, float], ...]:
    """Return the snippets that contain the text or are similar to it, with their similarity."""
    ranked: list[tuple[SnippetRecord, float]] = []
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
