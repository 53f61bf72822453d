"""Rows of helpers in the memory's SQLite file; each row is read as a whole."""

import sqlite3
from collections.abc import Callable
from typing import Final

from pydantic import TypeAdapter, ValidationError

from assay.memory.snippets import MOST_SKILLS, SkillRecord

SKILL: Final = TypeAdapter(SkillRecord)


def read_skills(database: sqlite3.Connection) -> tuple[SkillRecord, ...]:
    """Return all helpers, the newest first; skips rows that cannot be decoded."""
    found: list[SkillRecord] = []
    for (body,) in database.execute("SELECT body FROM skills").fetchall():
        try:
            found.append(SKILL.validate_json(body))
        except ValidationError:
            continue
    return tuple(sorted(found, key=lambda one: (-one.last_seen, one.id)))


def add_skill(database: sqlite3.Connection, record: SkillRecord) -> bool:
    """Add a helper if it is new; returns whether it was."""
    body = SKILL.dump_json(record).decode()
    added = database.execute("INSERT OR IGNORE INTO skills VALUES (?, ?)", (record.id, body))
    return bool(added.rowcount)


def change_skill(
    database: sqlite3.Connection,
    id_: str,
    change: Callable[[SkillRecord | None], SkillRecord | None],
) -> None:
    """Replace one row by the result of a function, within the caller's transaction."""
    row = database.execute("SELECT body FROM skills WHERE id = ?", (id_,)).fetchone()
    changed = change(SKILL.validate_json(row[0]) if row else None)
    if changed is not None:
        body = SKILL.dump_json(changed).decode()
        database.execute("INSERT OR REPLACE INTO skills VALUES (?, ?)", (id_, body))


def remove_surplus_skills(database: sqlite3.Connection) -> None:
    """Remove the lowest-ranked helpers when there are too many: retired, useless, old."""
    count = database.execute("SELECT count(*) FROM skills").fetchone()[0]
    if count <= MOST_SKILLS:
        return
    known = read_skills(database)
    ranked = sorted(known, key=lambda one: (not one.retired, one.worth, one.last_seen))
    gone = [(one.id,) for one in ranked[: count - MOST_SKILLS]]
    database.executemany("DELETE FROM skills WHERE id = ?", gone)
