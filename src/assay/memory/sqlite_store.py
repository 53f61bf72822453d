"""SQLite store of failure records, snippets and their vectors. Synchronous."""

import sqlite3
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from assay.contracts.errors import JournalError
from assay.memory.database import Notice, ignore_notice, is_damage, open_database, suspect_damage
from assay.memory.embedding import VectorIndex, build_index
from assay.memory.snippets import MOST_SNIPPETS, SnippetRecord
from assay.memory.types import (
    Facet,
    FailureRecord,
    Occurrence,
    Scope,
    Similar,
    Vectors,
    is_transferable,
    judged,
    occurrence_id,
    parts_of,
    seen_again,
)

SNIPPET: Final = TypeAdapter(SnippetRecord)
_COLUMNS: Final = tuple(field.name for field in fields(FailureRecord))
_NAMES: Final = ", ".join(_COLUMNS)
_values = attrgetter(*_COLUMNS)
_QUESTIONS: Final = ", ".join("?" * (len(_COLUMNS) + 1))
_REPLACED: Final = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name != "id")
_UPSERT: Final = (
    f"INSERT INTO records (revision, {_NAMES}) VALUES ({_QUESTIONS}) "  # noqa: S608 - our own names
    f"ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, {_REPLACED}"
)
_VISIBLE: Final = (
    "(:everything OR retired = '' AND (shared OR project = :project) "
    "AND (:environment = '' OR environment IN ('', :environment)))"
)
_STALE: Final = "WHERE last_seen < :before AND last_helped < :before AND retired = ''"
_Kind = tuple[str, Facet, int]
"""Comparable vectors: their embedder, facet and length."""
_MOST_RECORDS: Final = 200_000
_BATCH: Final = 500


class SqliteStore:
    """The records that one scope can see; without a scope all records, including retired ones."""

    def __init__(self, path: Path, scope: Scope | None, on_notice: Notice = ignore_notice) -> None:
        self._path = path
        here = scope or Scope()
        self._here = {
            "everything": scope is None,
            "project": here.project,
            "environment": here.environment,
        }
        self._database = open_database(path, on_notice)
        self._indexes: dict[_Kind, VectorIndex] = {}
        self._seen = (0, 0)

    def close(self) -> None:
        self._database.close()

    def matching(self, signature: str, limit: int) -> tuple[FailureRecord, ...]:
        """Return visible records of this failure, those with a lesson first.

        A failure that is not specific to its own test is the same in every project.
        """
        essence, _ = parts_of(signature)
        anywhere = essence if is_transferable(essence) else ""
        return self._select(
            f"WHERE {_VISIBLE} "
            "AND (signature = :signature OR essence <> '' AND essence = :essence) "
            "ORDER BY lesson = '', signature <> :signature, project <> :project, "
            "last_seen DESC LIMIT :limit",
            {**self._here, "signature": signature, "essence": anywhere, "limit": limit},
        )

    def nearest(
        self, embedder: str, facet: Facet, vector: bytes, limit: int
    ) -> tuple[Similar, ...]:
        """Return the visible records that are closest in one facet, the closest first."""
        with self._explained():
            near = dict(self._index(embedder, facet, len(vector)).nearest(vector, limit))
            marks = ", ".join("?" * len(near))
            rows = self._database.execute(
                f"SELECT key, {_NAMES} FROM records WHERE key IN ({marks})",  # noqa: S608 - question marks
                tuple(near),
            ).fetchall()
        found = (Similar(record=_record(row[1:]), likeness=near[row[0]]) for row in rows)
        return tuple(sorted(found, key=lambda similar: -similar.likeness))

    def learn(self, record: FailureRecord, embedder: str, vectors: Vectors) -> FailureRecord:
        """Store one occurrence and merge it with the record of the same failure."""
        with self._writing() as database:
            occurrence = occurrence_id(record)
            if database.execute("SELECT 1 FROM occurrences WHERE id = ?", (occurrence,)).fetchone():
                return self.find(record.id)[0]
            again = database.execute(
                "SELECT 1 FROM records JOIN occurrences ON record = key "
                "WHERE signature = :signature AND (shared OR project = :project) "
                "AND occurrences.run <> :run LIMIT 1",
                {**self._here, "signature": record.signature, "run": record.run},
            ).fetchone()
            known = self.find(record.id)
            if known:
                record = seen_again(known[0], record)
            record = self._shared_if_elsewhere(record)
            key = self._put(record)
            self._put_vectors(key, embedder, vectors)
            database.execute(
                "INSERT INTO occurrences VALUES (?, ?, ?, ?, ?)",
                (occurrence, key, record.last_seen, record.run, bool(again)),
            )
        return record

    def judge(self, ids: Iterable[str], *, helped: bool, now: float) -> None:
        """Count one judgement for each of these records; skips unknown ids."""
        with self._writing():
            for record in self._of_ids(tuple(dict.fromkeys(ids))):
                self._put(judged(record, helped=helped, now=now))

    def count_uses(self, uses: dict[str, int]) -> None:
        """Add to the number of times that records were shown."""
        with self._writing() as database:
            database.executemany(
                "UPDATE records SET used = used + ? WHERE id = ?",
                [(count, id_) for id_, count in uses.items()],
            )

    def retire_stale(self, before: float) -> int:
        """Retire records that neither occurred nor helped since then, and delete old surplus."""
        with self._explained():
            count = self._database.execute("SELECT count(*) FROM records").fetchone()[0]
            found = self._database.execute(
                f"SELECT count(*) FROM records {_STALE}",  # noqa: S608 - a constant
                {"before": before},
            )
            stale = found.fetchone()[0]
        surplus = max(0, count - _MOST_RECORDS)
        if not stale and not surplus:
            # The usual case, which needs no write to the disk.
            return 0
        with self._writing() as database:
            database.execute(
                f"UPDATE records SET retired = 'stale', revision = :revision {_STALE}",  # noqa: S608 - a constant
                {"before": before, "revision": self._count("revision")},
            )
            database.execute(
                "DELETE FROM records WHERE key IN (SELECT key FROM records "
                "ORDER BY retired = '', max(last_seen, last_helped) LIMIT ?)",
                (surplus,),
            )
            self._count("forgotten")
        return stale + surplus

    def unembedded(self, embedder: str, limit: int) -> tuple[FailureRecord, ...]:
        """Return records without a vector of this embedder, the newest first."""
        return self._select(
            "WHERE NOT EXISTS "
            "(SELECT 1 FROM vectors WHERE embedder = ? AND facet = 'goal' AND record = key) "
            "ORDER BY last_seen DESC LIMIT ?",
            (embedder, limit),
        )

    def embed(self, embedder: str, vectors: dict[str, Vectors]) -> None:
        """Add the vectors of records that lacked them."""
        with self._writing():
            for record in self._of_ids(tuple(vectors)):
                self._put_vectors(self._put(record), embedder, vectors[record.id])

    def import_(self, records: Iterable[FailureRecord | SnippetRecord]) -> tuple[int, int]:
        """Add imported records; returns the number of new and of known ones."""
        new = known = 0
        with self._writing() as database:
            for record in records:
                if isinstance(record, SnippetRecord):
                    row = (record.id, SNIPPET.dump_json(record).decode())
                    added = database.execute("INSERT OR IGNORE INTO snippets VALUES (?, ?)", row)
                    is_new = bool(added.rowcount)
                elif is_new := not self.find(record.id):
                    self._put(record)
                new += is_new
                known += not is_new
        return new, known

    def find(self, beginning: str) -> tuple[FailureRecord, ...]:
        """Return the records whose id starts with this prefix."""
        return self._select("WHERE id >= ? AND id < ? ORDER BY id", (beginning, f"{beginning}~"))

    def holding(self, text: str, limit: int) -> tuple[FailureRecord, ...]:
        """Return records whose text contains the query, the newest first."""
        return self._select(
            "WHERE instr(lower(signature || char(10) || message "
            "|| char(10) || goal || char(10) || lesson), lower(?)) "
            "ORDER BY last_seen DESC LIMIT ?",
            (text, limit),
        )

    def records(self, *, limit: int = -1) -> tuple[FailureRecord, ...]:
        """Return all records, the newest first."""
        return self._select("ORDER BY last_seen DESC, id LIMIT ?", (limit,))

    def occurrences(self) -> tuple[Occurrence, ...]:
        """Return every occurrence of a failure, in order."""
        with self._explained():
            rows = self._database.execute(
                "SELECT at, run, again FROM occurrences ORDER BY at, id"
            ).fetchall()
        return tuple(Occurrence(at=at, run=run, again=bool(again)) for at, run, again in rows)

    def snippets(self) -> tuple[SnippetRecord, ...]:
        """Return the snippets of all scopes, the newest first; skips rows that are damaged."""
        with self._explained():
            rows = self._database.execute("SELECT body FROM snippets").fetchall()
        found: list[SnippetRecord] = []
        for (body,) in rows:
            with suppress(ValidationError):
                found.append(SNIPPET.validate_json(body))
        return tuple(sorted(found, key=lambda one: (-one.last_seen, one.id)))

    def change_snippet(
        self, id_: str, change: Callable[[SnippetRecord | None], SnippetRecord | None]
    ) -> None:
        """Replace a snippet by the result of a function; None changes nothing."""
        with self._writing() as database:
            row = database.execute("SELECT body FROM snippets WHERE id = ?", (id_,)).fetchone()
            changed = change(SNIPPET.validate_json(row[0]) if row else None)
            if changed is not None:
                body = SNIPPET.dump_json(changed).decode()
                database.execute("INSERT OR REPLACE INTO snippets VALUES (?, ?)", (id_, body))
            count = database.execute("SELECT count(*) FROM snippets").fetchone()[0]
            if count > MOST_SNIPPETS:
                # The lowest-ranked ones go: retired, useless, old.
                known = self.snippets()
                ranked = sorted(known, key=lambda one: (not one.retired, one.worth, one.last_seen))
                gone = [(one.id,) for one in ranked[: count - MOST_SNIPPETS]]
                database.executemany("DELETE FROM snippets WHERE id = ?", gone)

    def forget(self, ids: Sequence[str]) -> int:
        """Delete records and snippets with all their data; returns the number of deleted ones."""
        removed = 0
        with self._writing() as database:
            for id_ in ids:
                for table in ("records", "snippets"):
                    statement = f"DELETE FROM {table} WHERE id = ?"  # noqa: S608 - our own tables
                    removed += database.execute(statement, (id_,)).rowcount
            self._count("forgotten")
        # Deleted text must not remain readable in the file.
        with self._explained():
            self._database.execute("VACUUM")
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return removed

    def _index(self, embedder: str, facet: Facet, dimensions: int) -> VectorIndex:
        """Return an index of everything in the file now, including writes of other processes."""
        counters = dict(self._database.execute("SELECT name, value FROM counters").fetchall())
        revision, forgotten = counters["revision"], counters["forgotten"]
        if forgotten != self._seen[1]:
            self._indexes.clear()
        elif revision != self._seen[0]:
            for kind, index in self._indexes.items():
                self._update(kind, index, since=self._seen[0])
        self._seen = (revision, forgotten)
        kind = (embedder, facet, dimensions)
        index = self._indexes.get(kind)
        if index is None:
            index = self._indexes[kind] = build_index(dimensions)
            self._update(kind, index, since=0)
        return index

    def _update(self, kind: _Kind, index: VectorIndex, *, since: int) -> None:
        changed = self._database.execute(
            f"SELECT key, {_VISIBLE} FROM records WHERE revision > :since",  # noqa: S608 - a constant
            {**self._here, "since": since},
        ).fetchall()
        visible = {key for key, is_visible in changed if is_visible}
        query = (
            "SELECT record, vector FROM vectors "
            "WHERE embedder = ? AND facet = ? AND length(vector) = ?"
        )
        rows: list[tuple[int, bytes]] = []
        if since:
            for key, is_visible in changed:
                if is_visible:
                    rows += self._database.execute(f"{query} AND record = ?", (*kind, key))
                else:
                    index.drop(key)
        else:
            # All rows are consecutive in the file.
            rows = [row for row in self._database.execute(query, kind) if row[0] in visible]
        index.put([row[0] for row in rows], [row[1] for row in rows])

    def _select(
        self, rest: str, values: Sequence[object] | Mapping[str, object]
    ) -> tuple[FailureRecord, ...]:
        """Return the records of a query from its conditions on; `rest` has no foreign text."""
        with self._explained():
            query = f"SELECT {_NAMES} FROM records {rest}"  # noqa: S608 - constants of this module
            return tuple(_record(row) for row in self._database.execute(query, values))

    def _of_ids(self, ids: Sequence[str]) -> list[FailureRecord]:
        found: list[FailureRecord] = []
        for start in range(0, len(ids), _BATCH):
            some = ids[start : start + _BATCH]
            found += self._select(f"WHERE id IN ({', '.join('?' * len(some))})", some)
        return found

    def _put(self, record: FailureRecord) -> int:
        self._database.execute(_UPSERT, (self._count("revision"), *_values(record)))
        found = self._database.execute("SELECT key FROM records WHERE id = ?", (record.id,))
        return found.fetchone()[0]

    def _put_vectors(self, key: int, embedder: str, vectors: Vectors) -> None:
        self._database.executemany(
            "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)",
            [(embedder, facet, key, vector) for facet, vector in vectors.items()],
        )

    def _shared_if_elsewhere(self, record: FailureRecord) -> FailureRecord:
        """Share a failure that two projects have had with all projects."""
        if record.shared or not is_transferable(record.essence):
            return record
        elsewhere = self._select(
            "WHERE essence = ? AND language = ? AND project <> ?",
            (record.essence, record.language, record.project),
        )
        for other in elsewhere:
            self._put(replace(other, shared=True))
        return replace(record, shared=bool(elsewhere))

    def _count(self, name: str) -> int:
        """Increase a counter, and return its new value."""
        found = self._database.execute(
            "UPDATE counters SET value = value + 1 WHERE name = ? RETURNING value", (name,)
        )
        return found.fetchall()[0][0]

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        """Run all writes in one transaction."""
        with self._explained():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.rollback()
                raise
            self._database.commit()

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            hint = ""
            if is_damage(error):
                suspect_damage(self._path)
                hint = "it is checked when it is opened next, and set aside if it is damaged"
            raise JournalError(f"the memory of failures: {error}", hint=hint) from error


def _record(row: Sequence[Any]) -> FailureRecord:
    values: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
    values["shared"] = bool(values["shared"])
    return FailureRecord(**values)
