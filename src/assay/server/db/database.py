"""One database connection in its own thread: SQLite, or PostgreSQL by a URL.

Work goes through the thread's queue, so that the event loop never waits for a disk and no two
transactions of a process compete for the write lock.
"""

import logging
import queue
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

import anyio
from anyio import from_thread, to_thread
from anyio.lowlevel import EventLoopToken, current_token

from assay.contracts.errors import JournalError, require
from assay.files import make_folder
from assay.text.sql_tables import Statements

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)
_BUSY_S: Final = 10.0
_CONNECT_S: Final = 10


@dataclass(slots=True, kw_only=True)
class _Job:
    work: Callable[[Statements], Any]
    writes: bool
    loop: EventLoopToken | None
    """None if no caller waits for the result."""
    done: anyio.Event = field(default_factory=anyio.Event)
    value: Any = None
    error: Exception | None = None


class Database:
    """Runs transactions and reads one after the other."""

    def __init__(self, connect: Callable[[], "_Connection"], *, hint: str) -> None:
        self._connect = connect
        self._hint = hint
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="assay-database", daemon=True)

    async def transact(self, work: Callable[[Statements], T]) -> T:
        """Run a transaction, which succeeds or fails as a whole.

        Raises:
            JournalError: If the database reports an error.
        """
        return await self._do(work, writes=True)

    async def read(self, work: Callable[[Statements], T]) -> T:
        """Run queries without a transaction, so that they never wait for a write lock.

        Raises:
            JournalError: If the database reports an error.
        """
        return await self._do(work, writes=False)

    def post(self, work: Callable[[Statements], Any]) -> None:
        """Queue a transaction without waiting for it; a failure is logged."""
        self._jobs.put(_Job(work=work, writes=True, loop=None))

    async def _do(self, work: Callable[[Statements], T], *, writes: bool) -> T:
        job = _Job(work=work, writes=writes, loop=current_token())
        self._jobs.put(job)
        # A cancelled caller stops waiting, but its transaction still completes.
        await job.done.wait()
        if job.error is not None:
            raise job.error
        return cast("T", job.value)

    async def start(self) -> None:
        """Start the thread, and check the connection."""
        self._thread.start()
        await self.read(lambda database: database.rows("SELECT 1"))

    async def stop(self) -> None:
        """Stop after the queued transactions."""
        self._jobs.put(None)
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._thread.join)

    def _work(self) -> None:
        connection: _Connection | None = None
        while (job := self._jobs.get()) is not None:
            try:
                # A server may have closed the connection; the next job reconnects.
                connection = connection or self._connect()
                with connection.transaction() if job.writes else nullcontext():
                    job.value = job.work(connection)
            except Exception as error:  # noqa: BLE001 - re-raised to the caller
                job.error = error
                if isinstance(error, connection.errors if connection else (OSError, sqlite3.Error)):
                    # The message of a server names the host and the user, never the password.
                    reason = " ".join(str(error).split())
                    job.error = JournalError(
                        f"the database does not answer: {reason}", hint=self._hint
                    )
                if connection is not None and connection.is_lost():
                    connection.close()
                    connection = None
            if job.loop is None:
                if job.error is not None:
                    _LOG.error("a queued transaction failed: %s", job.error)
                continue
            # The loop is closed if its process ends during a transaction; then no caller waits.
            with suppress(RuntimeError):
                from_thread.run_sync(job.done.set, token=job.loop)
        if connection is not None:
            connection.close()


class _Connection(Statements, Protocol):
    errors: type[Exception]
    """Base class of the errors of this database."""

    def transaction(self) -> AbstractContextManager[object]: ...

    def is_lost(self) -> bool: ...

    def close(self) -> None: ...


class _Sqlite:
    errors: type[Exception] = sqlite3.Error

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        path.touch(mode=0o600)
        self._database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        # A power failure may lose the last transactions, a crash of Assay may not.
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute("PRAGMA foreign_keys = ON")

    @contextmanager
    def transaction(self) -> Generator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise

    def run(self, sql: str, values: Sequence[object] = ()) -> int:
        return self._database.execute(sql, tuple(values)).rowcount

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._database.execute(sql, tuple(values)).fetchall()

    def is_lost(self) -> bool:
        return False

    def close(self) -> None:
        self._database.close()


class _Postgres:
    def __init__(self, url: str) -> None:
        with require("state on a PostgreSQL server", extra="postgres"):
            import psycopg
        self.errors: type[Exception] = psycopg.Error
        try:
            self._database = psycopg.connect(url, connect_timeout=_CONNECT_S, autocommit=True)
        except psycopg.Error as error:
            raise OSError(str(error)) from error

    def transaction(self) -> AbstractContextManager[object]:
        return self._database.transaction()

    def run(self, sql: str, values: Sequence[object] = ()) -> int:
        return self._database.execute(_numbered(sql), tuple(values)).rowcount

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._database.execute(_numbered(sql), tuple(values)).fetchall()

    def is_lost(self) -> bool:
        return bool(self._database.closed) or self._database.broken

    def close(self) -> None:
        with suppress(self.errors):
            self._database.close()


def _numbered(sql: str) -> Any:
    return sql.replace("?", "%s")


@asynccontextmanager
async def open_database(path: Path, url: str = "") -> AsyncGenerator[Database]:
    """Open the SQLite file, or connect to the server of the URL.

    Raises:
        JournalError: If the database does not answer.
        MissingExtraError: If the library for PostgreSQL is not installed.
    """
    hint = (
        "check that the server of serve.database runs and lets you in"
        if url
        else f"make room for {str(path)!r}, make it writable, or set another state_dir"
    )
    database = Database(lambda: _Postgres(url) if url else _Sqlite(path), hint=hint)
    try:
        await database.start()
        yield database
    finally:
        await database.stop()
