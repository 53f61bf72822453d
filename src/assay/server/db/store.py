"""Tables of the server: keys, usage, sessions, runs, audit log."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from assay.contracts.errors import UsageError
from assay.server.db.database import Database, Statements, open_database
from assay.server.db.models import (
    UNFINISHED,
    AuditEntry,
    AuditPage,
    Hold,
    KeyRecord,
    Page,
    RunRow,
    SessionRow,
    Usages,
    Used,
)

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
_KEY: Final = (
    "id, user_id, name, role, created_at, revoked_at, last_used_at, "
    "requests_per_minute, runs, tokens_per_day, usd_per_day"
)
_SESSION: Final = "id, user_id, title, created_at, updated_at, turns, model, key_id, busy"
_RUN: Final = (
    "id, user_id, key_id, goal, status, model, created_at, ended_at, error, tokens, cost_usd, grade"
)
_AUDIT: Final = (
    "id, at, user_id, key_id, action, target, outcome, request_id, "
    "part, model, backend, code_sha256, duration_s"
)
_HOLD: Final = "id, key_id, kind, target, tokens, cost_usd, created_at"
_LAST: Final = 1e18
"""Later than any entry."""

T = TypeVar("T")
R = TypeVar("R", KeyRecord, SessionRow, RunRow, AuditEntry, Hold)


class Store:
    """Queries by user, so that no caller finds another user's rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def prepare(self) -> None:
        """Create missing tables, and migrate older ones.

        Raises:
            UsageError: If a newer version of Assay created them.
        """

        def prepare(statements: Statements) -> None:
            for sql in _SCHEMA:
                statements.run(sql)
            found = statements.rows("SELECT version FROM assay_version")
            if not found:
                statements.run("INSERT INTO assay_version VALUES (?)", (_VERSION,))
            elif found[0][0] > _VERSION:
                raise UsageError(
                    "a newer version of Assay has written this database",
                    hint="use that version, or another database",
                )
            elif found[0][0] < _VERSION:
                _bring_up_to_date(statements, found[0][0])

        await self._database.do(prepare)

    async def transact(self, work: Callable[[Statements], T]) -> T:
        """Run several statements in one transaction; raises `JournalError`."""
        return await self._database.do(work)

    def post(self, work: Callable[[Statements], Any]) -> None:
        """Queue a transaction without waiting for it; a failure is logged."""
        self._database.post(work)

    async def check(self) -> None:
        """Raise `JournalError` if the database does not answer."""
        await self._rows("SELECT 1")

    async def add_key(self, key: KeyRecord, digest: str) -> None:
        columns = f"INSERT INTO assay_keys ({_KEY}, digest) VALUES ({_marks(12)})"
        await self._run(columns, (*astuple(key), digest))

    async def keys(self) -> tuple[KeyRecord, ...]:
        sql = f"SELECT {_KEY} FROM assay_keys ORDER BY created_at, id"
        return _all(KeyRecord, await self._rows(sql))

    async def has_keys(self) -> bool:
        """Whether a key ever existed: revoking the last one does not open the service."""
        return bool(await self._rows("SELECT 1 FROM assay_keys LIMIT 1"))

    async def key_with(self, digest: str) -> KeyRecord | None:
        """Return the key of this digest, unless it is revoked."""
        sql = f"SELECT {_KEY} FROM assay_keys WHERE digest = ? AND revoked_at IS NULL"
        return _first(KeyRecord, await self._rows(sql, (digest,)))

    async def revoke_key(self, key_id: str, at: float) -> bool:
        """Whether such a valid key existed."""
        sql = "UPDATE assay_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
        return await self._run(sql, (at, key_id)) > 0

    async def add_usage(self, added: Sequence[Usages], *, seen_at: float) -> None:
        """Add to the usage of keys."""

        def add(statements: Statements) -> None:
            for each in added:
                count_usage(statements, each, seen_at=seen_at)

        await self._database.do(add)

    async def usage(self, key_id: str, day: str) -> Used:
        return await self._database.do(lambda statements: usage_of(statements, key_id, day))

    async def put_session(self, row: SessionRow) -> None:
        await self._run(
            f"INSERT INTO assay_sessions ({_SESSION}) VALUES ({_marks(9)}) "
            "ON CONFLICT (user_id, id) DO UPDATE SET title = excluded.title, "
            "updated_at = excluded.updated_at, turns = excluded.turns, model = excluded.model, "
            "key_id = excluded.key_id, busy = excluded.busy",
            (*astuple(row)[:-1], int(row.busy)),
        )

    async def session(self, user: str, session_id: str) -> SessionRow | None:
        sql = f"SELECT {_SESSION} FROM assay_sessions WHERE user_id = ? AND id = ?"
        return _first(SessionRow, await self._rows(sql, (user, session_id)))

    async def sessions(self, user: str, page: Page) -> tuple[SessionRow, ...]:
        """Return a page of sessions, the last used one first."""
        sql = (
            f"SELECT {_SESSION} FROM assay_sessions WHERE user_id = ? AND updated_at < ? "
            "ORDER BY updated_at DESC, id LIMIT ?"
        )
        values = (user, _LAST if page.before is None else page.before, page.limit)
        return _all(SessionRow, await self._rows(sql, values))

    async def busy_sessions(self) -> tuple[SessionRow, ...]:
        """Return all sessions of all users with an unfinished turn."""
        sql = f"SELECT {_SESSION} FROM assay_sessions WHERE busy <> 0"
        return _all(SessionRow, await self._rows(sql))

    async def delete_session(self, user: str, session_id: str) -> bool:
        def delete(statements: Statements) -> bool:
            thread = "DELETE FROM assay_threads WHERE user_id = ? AND session_id = ?"
            statements.run(thread, (user, session_id))
            sql = "DELETE FROM assay_sessions WHERE user_id = ? AND id = ?"
            return statements.run(sql, (user, session_id)) > 0

        return await self._database.do(delete)

    async def put_run(self, row: RunRow) -> None:
        await self._database.do(lambda statements: write_run(statements, row))

    async def run(self, user: str, run_id: str) -> RunRow | None:
        sql = f"SELECT {_RUN} FROM assay_runs WHERE user_id = ? AND id = ?"
        return _first(RunRow, await self._rows(sql, (user, run_id)))

    async def runs(self, user: str, page: Page) -> tuple[RunRow, ...]:
        """Return a page of runs, the newest first."""
        sql = (
            f"SELECT {_RUN} FROM assay_runs WHERE user_id = ? AND created_at < ? "
            "ORDER BY created_at DESC, id LIMIT ?"
        )
        values = (user, _LAST if page.before is None else page.before, page.limit)
        return _all(RunRow, await self._rows(sql, values))

    async def unfinished_runs(self) -> tuple[RunRow, ...]:
        """Return the unfinished runs of all users, the oldest first."""
        sql = f"SELECT {_RUN} FROM assay_runs WHERE status IN (?, ?) ORDER BY created_at, id"
        return _all(RunRow, await self._rows(sql, UNFINISHED))

    async def count_unfinished(self, key_id: str) -> int:
        sql = "SELECT COUNT(*) FROM assay_runs WHERE key_id = ? AND status IN (?, ?)"
        return int((await self._rows(sql, (key_id, *UNFINISHED)))[0][0])

    async def delete_run(self, user: str, run_id: str) -> bool:
        sql = "DELETE FROM assay_runs WHERE user_id = ? AND id = ?"
        return await self._run(sql, (user, run_id)) > 0

    async def hold_of(self, run_id: str, key_id: str) -> Hold | None:
        """Return the reservation of an unfinished run."""
        sql = f"SELECT {_HOLD} FROM assay_holds WHERE kind = 'run' AND target = ? AND key_id = ?"
        return _first(Hold, await self._rows(sql, (run_id, key_id)))

    async def put_thread(self, user: str, digest: str, session_id: str) -> None:
        """Store which session continues the messages with this digest, for OpenAI's API."""
        await self._run(
            "INSERT INTO assay_threads VALUES (?, ?, ?) "
            "ON CONFLICT (user_id, digest) DO UPDATE SET session_id = excluded.session_id",
            (user, digest, session_id),
        )

    async def thread(self, user: str, digest: str) -> str | None:
        sql = "SELECT session_id FROM assay_threads WHERE user_id = ? AND digest = ?"
        found = await self._rows(sql, (user, digest))
        return found[0][0] if found else None

    async def add_audit(self, entry: AuditEntry) -> None:
        await self._database.do(lambda statements: write_audit(statements, entry))

    async def audit(self, page: AuditPage) -> tuple[AuditEntry, ...]:
        """Return a page of the audit log, the newest first."""
        at, entry_id = page.after_entry or (_LAST, "")
        conditions = ["at < ?", "at >= ?", "(at < ? OR (at = ? AND id > ?))"]
        values: list[object] = [
            _LAST if page.before is None else page.before,
            -_LAST if page.since is None else page.since,
            at,
            at,
            entry_id,
        ]
        wanted = {"user_id": page.user, "action": page.action, "target": page.target}
        for column, value in wanted.items():
            if value:
                conditions.append(f"{column} = ?")
                values.append(value)
        sql = (
            f"SELECT {_AUDIT} FROM assay_audit WHERE {' AND '.join(conditions)} "
            "ORDER BY at DESC, id LIMIT ?"
        )
        return _all(AuditEntry, await self._rows(sql, (*values, page.limit)))

    async def revoked_keys(self) -> frozenset[str]:
        """Return the ids of all revoked keys."""
        sql = "SELECT id FROM assay_keys WHERE revoked_at IS NOT NULL"
        return frozenset(row[0] for row in await self._rows(sql))

    async def revoked_key(self, digest: str) -> KeyRecord | None:
        """Return the key of this digest if it is revoked."""
        sql = f"SELECT {_KEY} FROM assay_keys WHERE digest = ? AND revoked_at IS NOT NULL"
        return _first(KeyRecord, await self._rows(sql, (digest,)))

    async def _run(self, sql: str, values: Sequence[object] = ()) -> int:
        return await self._database.do(lambda statements: statements.run(sql, values))

    async def _rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return await self._database.do(lambda statements: statements.rows(sql, values))


def usage_of(statements: Statements, key_id: str, day: str) -> Used:
    """Return the usage of a key on a day."""
    sql = "SELECT requests, tokens, cost_usd FROM assay_usage WHERE key_id = ? AND day = ?"
    found = statements.rows(sql, (key_id, day))
    if not found:
        return Used()
    requests, tokens, cost_usd = found[0]
    return Used(requests=requests, tokens=tokens, cost_usd=cost_usd)


def count_usage(statements: Statements, added: Usages, *, seen_at: float) -> None:
    """Add to the usage of a key."""
    used = added.used
    statements.run(
        "INSERT INTO assay_usage VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (key_id, day) DO UPDATE SET "
        "requests = assay_usage.requests + excluded.requests, "
        "tokens = assay_usage.tokens + excluded.tokens, "
        "cost_usd = assay_usage.cost_usd + excluded.cost_usd",
        (added.key_id, added.day, used.requests, used.tokens, used.cost_usd),
    )
    seen = "UPDATE assay_keys SET last_used_at = ? WHERE id = ?"
    statements.run(seen, (seen_at, added.key_id))


def write_audit(statements: Statements, entry: AuditEntry) -> None:
    """Add an entry to the audit log."""
    sql = f"INSERT INTO assay_audit ({_AUDIT}) VALUES ({_marks(13)})"
    statements.run(sql, astuple(entry))


def write_run(statements: Statements, row: RunRow) -> None:
    """Insert or update the row of a run."""
    statements.run(
        f"INSERT INTO assay_runs ({_RUN}) VALUES ({_marks(12)}) "
        "ON CONFLICT (user_id, id) DO UPDATE SET status = excluded.status, "
        "key_id = excluded.key_id, model = excluded.model, ended_at = excluded.ended_at, "
        "error = excluded.error, tokens = excluded.tokens, cost_usd = excluded.cost_usd, "
        "grade = excluded.grade",
        astuple(row),
    )


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


def _bring_up_to_date(statements: Statements, version: int) -> None:
    for number in range(version + 1, _VERSION + 1):
        for sql in _SINCE[number]:
            statements.run(sql)
    statements.run("UPDATE assay_version SET version = ?", (_VERSION,))


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _all(kind: type[R], rows: list[tuple[Any, ...]]) -> tuple[R, ...]:
    """Build values from rows whose columns have the order of the fields."""
    names = [field.name for field in fields(kind)]
    return tuple(kind(**_typed(dict(zip(names, row, strict=True)))) for row in rows)


def _first(kind: type[R], rows: list[tuple[Any, ...]]) -> R | None:
    return _all(kind, rows[:1])[0] if rows else None


def _typed(columns: dict[str, Any]) -> dict[str, Any]:
    if "busy" in columns:
        columns["busy"] = bool(columns["busy"])
    return columns
