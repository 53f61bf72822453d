"""What a run cannot see of the store: growing old, keeping count, being searched."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from assay.contracts.lessons import RecallQuery
from assay.memory.embedding import HashedEmbedder, hashed, pack
from assay.memory.ranking import search
from assay.memory.sqlite_store import SqliteStore
from assay.memory.stored_memory import StoredMemory
from assay.memory.types import FACETS, FailureRecord, Scope, Vectors, record_of
from tests.conformance.memory.failures import CHART, DURATIONS, query_for

NAME = HashedEmbedder.name
DAY = 86_400.0


@pytest.fixture
def store(tmp_path: Path) -> Generator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "memory.sqlite", Scope())) as opened:
        yield opened


def vectors(record: FailureRecord) -> Vectors:
    return {facet: pack(hashed(record.text(facet))) for facet in FACETS}


def learn(store: SqliteStore, record: FailureRecord) -> FailureRecord:
    return store.learn(record, NAME, vectors(record))


def test_what_did_not_happen_or_help_for_long_retires(store: SqliteStore) -> None:
    learn(store, record_of(DURATIONS, Scope(), 100.0))
    helped = learn(store, record_of(CHART, Scope(), 100.0))
    store.judge([helped.id], helped=True, now=500.0)

    assert store.retire_stale(before=50.0) == 0
    assert store.retire_stale(before=300.0) == 1

    assert store.matching(DURATIONS.signature, 5) == ()
    assert len(store.matching(CHART.signature, 5)) == 1
    wanted = pack(hashed(DURATIONS.goal))
    assert [near.record.id for near in store.nearest(NAME, "goal", wanted, 5)] == [helped.id]


def test_a_stale_record_that_happens_again_is_found_again(store: SqliteStore) -> None:
    wanted = pack(hashed(DURATIONS.goal))
    learn(store, record_of(DURATIONS, Scope(), 100.0))
    assert len(store.nearest(NAME, "goal", wanted, 5)) == 1
    store.retire_stale(before=300.0)
    assert store.nearest(NAME, "goal", wanted, 5) == ()

    learn(store, record_of(replace(DURATIONS, run="later"), Scope(), 900.0))

    assert len(store.nearest(NAME, "goal", wanted, 5)) == 1
    assert len(store.matching(DURATIONS.signature, 5)) == 1


def test_a_failure_counts_as_repeated_when_an_earlier_run_had_it(store: SqliteStore) -> None:
    for at, run in enumerate(("a", "a", "b")):
        failure = replace(DURATIONS, run=run, action=f"attempt {at}")
        learn(store, record_of(failure, Scope(), float(at)))

    assert [one.again for one in store.occurrences()] == [False, False, True]


async def test_uses_are_counted_when_the_memory_is_settled(store: SqliteStore) -> None:
    memory = StoredMemory(store, Scope())
    await memory.learn(DURATIONS)
    for _ in range(3):
        await memory.recall(query_for(DURATIONS, "failure"))
    await memory.recall(RecallQuery(moment="plan", goal="something else entirely"))

    await memory.settle()
    await memory.settle()

    assert store.records()[0].used == 3


def test_vectors_of_another_length_are_left_alone(store: SqliteStore) -> None:
    record = record_of(DURATIONS, Scope(), 1.0)
    store.learn(record, NAME, dict.fromkeys(FACETS, b"\x01" * 64))

    assert store.nearest(NAME, "goal", pack(hashed(DURATIONS.goal)), 5) == ()


def test_imported_records_are_embedded_before_they_are_searched(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "memory.sqlite", None)) as store:
        store.import_([record_of(DURATIONS, Scope(project="x"), 1.0)])

        found = search(store, "how to parse a duration", 5)

        assert [near.record.kind for near in found] == ["NameError"]
        assert store.unembedded(NAME, 5) == ()


def test_a_search_for_part_of_a_word_is_literal(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "memory.sqlite", None)) as store:
        store.import_([record_of(DURATIONS, Scope(), 1.0), record_of(CHART, Scope(), 2.0)])

        assert [one.kind for one in store.holding("KEYERR", 5)] == ["KeyError"]
        assert store.holding("%", 5) == ()
        assert store.holding("'; DROP TABLE records", 5) == ()
