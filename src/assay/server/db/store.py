"""Tables of the server: keys, usage, sessions, runs, audit log."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from assay.contracts.errors import UsageError
from assay.server.db.database import Database, open_database
from assay.server.db.models import (
    UNFINISHED,
    AuditEntry,
    AuditPage,
    DailyUsage,
    Hold,
    KeyRecord,
    Page,
    RunRow,
    SessionRow,
)
from assay.text.sql_tables import Statements, Table

_VERSION: Final = 5
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS assay_version (version INTEGER NOT NULL)",
    """CREATE TABLE IF NOT EXISTS assay_keys (
        id TEXT PRIMARY KEY, user_id TEXT NOT NULL, name TEXT NOT NULL, role TEXT NOT NULL,
        created_at DOUBLE PRECISION NOT NULL, revoked_at DOUBLE PRECISION,
        last_used_at DOUBLE PRECISION, requests_per_minute BIGINT, runs BIGINT,
        tokens_per_day BIGINT, usd_per_day DOUBLE PRECISION, digest TEXT NOT NULL UNIQUE)""",
    """CREATE TABLE IF NOT EXISTS assay_usage (
        key_id TEXT NOT NULL, day TEXT NOT NULL, requests BIGINT NOT NULL, tokens BIGINT NOT NULL,
        cost_usd DOUBLE PRECISION NOT NULL, PRIMARY KEY (key_id, day))""",
    """CREATE TABLE IF NOT EXISTS assay_sessions (
        id TEXT NOT NULL, user_id TEXT NOT NULL, title TEXT NOT NULL,
        created_at DOUBLE PRECISION NOT NULL, updated_at DOUBLE PRECISION NOT NULL,
        turns BIGINT NOT NULL, model TEXT NOT NULL, key_id TEXT NOT NULL, busy INTEGER NOT NULL,
        PRIMARY KEY (user_id, id))""",
    "CREATE INDEX IF NOT EXISTS assay_sessions_new ON assay_sessions (user_id, updated_at)",
    """CREATE TABLE IF NOT EXISTS assay_runs (
        id TEXT NOT NULL, user_id TEXT NOT NULL, key_id TEXT NOT NULL, goal TEXT NOT NULL,
        status TEXT NOT NULL, model TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL,
        ended_at DOUBLE PRECISION, error TEXT NOT NULL, tokens BIGINT NOT NULL,
        cost_usd DOUBLE PRECISION NOT NULL, grade TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (user_id, id))""",
    "CREATE INDEX IF NOT EXISTS assay_runs_new ON assay_runs (user_id, created_at)",
    """CREATE TABLE IF NOT EXISTS assay_threads (
        user_id TEXT NOT NULL, digest TEXT NOT NULL, session_id TEXT NOT NULL,
        PRIMARY KEY (user_id, digest))""",
    """CREATE TABLE IF NOT EXISTS assay_audit (
        id TEXT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, user_id TEXT NOT NULL,
        key_id TEXT NOT NULL, action TEXT NOT NULL, target TEXT NOT NULL, outcome TEXT NOT NULL,
        request_id TEXT NOT NULL, part TEXT NOT NULL DEFAULT '', model TEXT NOT NULL DEFAULT '',
        backend TEXT NOT NULL DEFAULT '', code_sha256 TEXT NOT NULL DEFAULT '',
        duration_s DOUBLE PRECISION)""",
    "CREATE INDEX IF NOT EXISTS assay_audit_at ON assay_audit (at)",
    """CREATE TABLE IF NOT EXISTS assay_holds (
        id TEXT PRIMARY KEY, key_id TEXT NOT NULL, kind TEXT NOT NULL, target TEXT NOT NULL,
        tokens BIGINT NOT NULL, cost_usd DOUBLE PRECISION NOT NULL,
        created_at DOUBLE PRECISION NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS assay_holds_key ON assay_holds (key_id)",
)
_SINCE: Final = {
    2: (
        "ALTER TABLE assay_runs ADD COLUMN tokens BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE assay_runs ADD COLUMN cost_usd DOUBLE PRECISION NOT NULL DEFAULT 0",
        "ALTER TABLE assay_sessions ADD COLUMN key_id TEXT NOT NULL DEFAULT ''",
    ),
    3: (
        """INSERT INTO assay_holds SELECT user_id || '/' || id, key_id, 'run', id, 0, 0, created_at
        FROM assay_runs WHERE status IN ('queued', 'running')""",
    ),
    4: (
        "ALTER TABLE assay_audit ADD COLUMN part TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE assay_audit ADD COLUMN model TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE assay_audit ADD COLUMN backend TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE assay_audit ADD COLUMN code_sha256 TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE assay_audit ADD COLUMN duration_s DOUBLE PRECISION",
    ),
    5: ("ALTER TABLE assay_runs ADD COLUMN grade TEXT NOT NULL DEFAULT ''",),
}
"""Migration of each version from the one before it."""
_LAST: Final = 1e18
"""Later than any entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyRow(KeyRecord):
    digest: str


_USER: Final = {"user": "user_id"}
KEYS: Final = Table("assay_keys", KeyRecord, renamed=_USER)
_NEW_KEYS: Final = Table("assay_keys", _KeyRow, renamed=_USER)
USAGE: Final = Table("assay_usage", DailyUsage, key=("key_id", "day"))
HOLDS: Final = Table("assay_holds", Hold)
SESSIONS: Final = Table("assay_sessions", SessionRow, key=("user_id", "id"), renamed=_USER)
RUNS: Final = Table("assay_runs", RunRow, key=("user_id", "id"), renamed=_USER)
AUDIT: Final = Table("assay_audit", AuditEntry, renamed=_USER)


class Store:
    """Queries by user, so that no caller finds another user's rows."""

    def __init__(self, database: Database) -> None:
        self.transact: Final = database.transact
        self.read: Final = database.read
        self.post: Final = database.post

    async def prepare(self) -> None:
        """Create missing tables, and migrate older ones.

        Raises:
            UsageError: If a newer version of Assay created them.
        """

        def prepare(db: Statements) -> None:
            for sql in _SCHEMA:
                db.run(sql)
            found = db.rows("SELECT version FROM assay_version")
            if not found:
                db.run("INSERT INTO assay_version VALUES (?)", (_VERSION,))
                return
            if found[0][0] > _VERSION:
                raise UsageError(
                    "a newer version of Assay has written this database",
                    hint="use that version, or another database",
                )
            for number in range(found[0][0] + 1, _VERSION + 1):
                for sql in _SINCE[number]:
                    db.run(sql)
            db.run("UPDATE assay_version SET version = ?", (_VERSION,))

        await self.transact(prepare)

    async def check(self) -> None:
        """Raise `JournalError` if the database does not answer."""
        await self._rows("SELECT 1")

    async def add_key(self, key: KeyRecord, digest: str) -> None:
        row = _KeyRow(**asdict(key), digest=digest)
        await self.transact(lambda db: _NEW_KEYS.add(db, row))

    async def keys(self) -> tuple[KeyRecord, ...]:
        return await self.read(lambda db: KEYS.all(db, "ORDER BY created_at, id"))

    async def has_keys(self) -> bool:
        """Whether a key ever existed: revoking the last one does not open the service."""
        return bool(await self._rows("SELECT 1 FROM assay_keys LIMIT 1"))

    async def key_with(self, digest: str) -> KeyRecord | None:
        """Return the key of this digest, which may be revoked."""
        return await self.read(lambda db: KEYS.first(db, "WHERE digest = ?", (digest,)))

    async def revoke_key(self, key_id: str, at: float) -> bool:
        """Whether such a valid key existed."""
        sql = "UPDATE assay_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
        return await self.transact(lambda db: db.run(sql, (at, key_id))) > 0

    async def usage(self, key_id: str, day: str) -> DailyUsage:
        return await self.read(lambda db: usage_of(db, key_id, day))

    async def session(self, user: str, session_id: str) -> SessionRow | None:
        values = (user, session_id)
        return await self.read(
            lambda db: SESSIONS.first(db, "WHERE user_id = ? AND id = ?", values)
        )

    async def sessions(self, user: str, page: Page) -> tuple[SessionRow, ...]:
        """Return a page of sessions, the last used one first."""
        rest = "WHERE user_id = ? AND updated_at < ? ORDER BY updated_at DESC, id LIMIT ?"
        values = (user, _LAST if page.before is None else page.before, page.limit)
        return await self.read(lambda db: SESSIONS.all(db, rest, values))

    async def busy_sessions(self) -> tuple[SessionRow, ...]:
        """Return all sessions of all users with an unfinished turn."""
        return await self.read(lambda db: SESSIONS.all(db, "WHERE busy <> 0"))

    async def put_session(self, row: SessionRow) -> None:
        await self.transact(lambda db: SESSIONS.put(db, row))

    async def delete_session(self, user: str, session_id: str) -> bool:
        def delete(db: Statements) -> bool:
            values = (user, session_id)
            db.run("DELETE FROM assay_threads WHERE user_id = ? AND session_id = ?", values)
            return db.run("DELETE FROM assay_sessions WHERE user_id = ? AND id = ?", values) > 0

        return await self.transact(delete)

    async def put_run(self, row: RunRow) -> None:
        await self.transact(lambda db: RUNS.put(db, row))

    async def run(self, user: str, run_id: str) -> RunRow | None:
        values = (user, run_id)
        return await self.read(lambda db: RUNS.first(db, "WHERE user_id = ? AND id = ?", values))

    async def runs(self, user: str, page: Page) -> tuple[RunRow, ...]:
        """Return a page of runs, the newest first."""
        rest = "WHERE user_id = ? AND created_at < ? ORDER BY created_at DESC, id LIMIT ?"
        values = (user, _LAST if page.before is None else page.before, page.limit)
        return await self.read(lambda db: RUNS.all(db, rest, values))

    async def unfinished_runs(self) -> tuple[RunRow, ...]:
        """Return the unfinished runs of all users, the oldest first."""
        rest = "WHERE status IN (?, ?) ORDER BY created_at, id"
        return await self.read(lambda db: RUNS.all(db, rest, UNFINISHED))

    async def count_unfinished(self, key_id: str) -> int:
        sql = "SELECT COUNT(*) FROM assay_runs WHERE key_id = ? AND status IN (?, ?)"
        return int((await self._rows(sql, (key_id, *UNFINISHED)))[0][0])

    async def delete_run(self, user: str, run_id: str) -> bool:
        sql = "DELETE FROM assay_runs WHERE user_id = ? AND id = ?"
        return await self.transact(lambda db: db.run(sql, (user, run_id))) > 0

    async def hold_of(self, run_id: str, key_id: str) -> Hold | None:
        """Return the reservation of an unfinished run."""
        rest = "WHERE kind = 'run' AND target = ? AND key_id = ?"
        return await self.read(lambda db: HOLDS.first(db, rest, (run_id, key_id)))

    async def put_thread(self, user: str, digest: str, session_id: str) -> None:
        """Store which session continues the messages with this digest, for OpenAI's API."""
        sql = (
            "INSERT INTO assay_threads VALUES (?, ?, ?) "
            "ON CONFLICT (user_id, digest) DO UPDATE SET session_id = excluded.session_id"
        )
        await self.transact(lambda db: db.run(sql, (user, digest, session_id)))

    async def thread(self, user: str, digest: str) -> str | None:
        sql = "SELECT session_id FROM assay_threads WHERE user_id = ? AND digest = ?"
        found = await self._rows(sql, (user, digest))
        return found[0][0] if found else None

    async def add_audit(self, entry: AuditEntry) -> None:
        await self.transact(lambda db: AUDIT.add(db, entry))

    async def audit(self, page: AuditPage) -> tuple[AuditEntry, ...]:
        """Return a page of the audit log, the newest first."""
        at, entry_id = page.after_entry or (_LAST, "")
        conditions = ["at < ?", "at >= ?", "(at < ? OR (at = ? AND id > ?))"]
        before = _LAST if page.before is None else page.before
        since = -_LAST if page.since is None else page.since
        values: list[object] = [before, since, at, at, entry_id]
        filters = {"user_id": page.user, "action": page.action, "target": page.target}
        for column, value in filters.items():
            if value:
                conditions.append(f"{column} = ?")
                values.append(value)
        rest = f"WHERE {' AND '.join(conditions)} ORDER BY at DESC, id LIMIT ?"
        return await self.read(lambda db: AUDIT.all(db, rest, (*values, page.limit)))

    async def _rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return await self.read(lambda db: db.rows(sql, values))


def usage_of(db: Statements, key_id: str, day: str) -> DailyUsage:
    """Return the usage of a key on a day."""
    found = USAGE.first(db, "WHERE key_id = ? AND day = ?", (key_id, day))
    return found or DailyUsage(key_id=key_id, day=day)


def count_usage(db: Statements, used: DailyUsage, *, seen_at: float) -> None:
    """Add to the usage of a key."""
    db.run(
        "INSERT INTO assay_usage VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (key_id, day) DO UPDATE SET "
        "requests = assay_usage.requests + excluded.requests, "
        "tokens = assay_usage.tokens + excluded.tokens, "
        "cost_usd = assay_usage.cost_usd + excluded.cost_usd",
        (used.key_id, used.day, used.requests, used.tokens, used.cost_usd),
    )
    db.run("UPDATE assay_keys SET last_used_at = ? WHERE id = ?", (seen_at, used.key_id))


@asynccontextmanager
async def open_store(state_dir: Path, url: str = "") -> AsyncGenerator[Store]:
    """Open the database: a file in the folder, or the server of the URL.

    Raises:
        JournalError: If the database does not answer.
        UsageError: If a newer version of Assay wrote it.
        MissingExtraError: If the library for PostgreSQL is not installed.
    """
    async with open_database(state_dir / "serve.sqlite", url) as database:
        store = Store(database)
        await store.prepare()
        yield store
