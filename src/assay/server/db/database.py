"""One database connection in its own thread: SQLite, or PostgreSQL by a URL.

Both use the same small SQL dialect. Transactions go through the thread's queue, so that the event
loop never waits for a disk and no two write at the same time.
"""

import logging
import queue
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

import anyio
from anyio import from_thread, to_thread
from anyio.lowlevel import EventLoopToken, current_token

from assay.contracts.errors import JournalError, require
from assay.files import make_folder

T = TypeVar("T")
Row = tuple[Any, ...]

_LOG: Final = logging.getLogger(__name__)
_BUSY_S: Final = 10.0
_CONNECT_S: Final = 10


class Statements(Protocol):
    """Statements of a transaction, in the database thread."""

    def run(self, sql: str, values: Sequence[object] = ()) -> int:
        """Execute a statement; return the number of changed rows. Values stand for `?`."""
        ...

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Query rows."""
        ...


@dataclass(slots=True, kw_only=True)
class _Order:
    work: Callable[[Statements], Any]
    loop: EventLoopToken | None
    """None if no caller waits for the result."""
    done: anyio.Event = field(default_factory=anyio.Event)
    value: Any = None
    error: Exception | None = None


class Database:
    """Runs transactions one after the other; each succeeds or fails as a whole."""

    def __init__(self, connect: Callable[[], "_Connection"], *, hint: str) -> None:
        self._connect = connect
        self._hint = hint
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="assay-database", daemon=True)

    async def do(self, work: Callable[[Statements], T]) -> T:
        """Run a transaction.

        Raises:
            JournalError: If the database reports an error.
        """
        order = _Order(work=work, loop=current_token())
        self._orders.put(order)
        # A cancelled caller stops waiting, but its transaction still completes.
        await order.done.wait()
        if order.error is not None:
            raise order.error
        return cast("T", order.value)

    def post(self, work: Callable[[Statements], Any]) -> None:
        """Queue a transaction without waiting for it; a failure is logged."""
        self._orders.put(_Order(work=work, loop=None))

    async def start(self) -> None:
        """Start the thread, and check the connection."""
        self._thread.start()
        await self.do(lambda statements: statements.rows("SELECT 1"))

    async def stop(self) -> None:
        """Stop after the queued transactions."""
        self._orders.put(None)
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._thread.join)

    def _work(self) -> None:
        connection: _Connection | None = None
        while (order := self._orders.get()) is not None:
            try:
                # A server may have closed the connection; the next transaction reconnects.
                connection = connection or self._connect()
                order.value = connection.transact(order.work)
            except _Broken as error:
                if connection is not None and error.lost:
                    connection.close()
                    connection = None
                order.error = JournalError(
                    f"the database does not answer: {error}", hint=self._hint
                )
            except Exception as error:  # noqa: BLE001 - re-raised to the caller
                order.error = error
            if order.loop is None:
                if order.error is not None:
                    _LOG.error("a queued transaction failed: %s", order.error)
                continue
            # The loop is closed if its process ends during a transaction; then no caller waits.
            with suppress(RuntimeError):
                from_thread.run_sync(order.done.set, token=order.loop)
        if connection is not None:
            connection.close()


class _Broken(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, message: str, *, lost: bool) -> None:
        super().__init__(message)
        self.lost = lost


class _Connection(Protocol):
    def transact(self, work: Callable[[Statements], T]) -> T: ...

    def close(self) -> None: ...


class _Sqlite:
    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        path.touch(mode=0o600)
        self._database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        # A power failure may lose the last transactions, a crash of Assay may not.
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute("PRAGMA foreign_keys = ON")

    def transact(self, work: Callable[[Statements], T]) -> T:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                value = work(self)
                self._database.execute("COMMIT")
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise _Broken(str(error), lost=False) from error
        return value

    def run(self, sql: str, values: Sequence[object] = ()) -> int:
        return self._database.execute(sql, tuple(values)).rowcount

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        return self._database.execute(sql, tuple(values)).fetchall()

    def close(self) -> None:
        self._database.close()


class _Postgres:
    def __init__(self, url: str) -> None:
        with require("state on a PostgreSQL server", extra="postgres"):
            import psycopg
        self._trouble = psycopg.Error
        try:
            self._database = psycopg.connect(url, connect_timeout=_CONNECT_S)
        except psycopg.Error as error:
            # The message names the host and the user, never the password.
            raise _Broken(" ".join(str(error).split()), lost=True) from error

    def transact(self, work: Callable[[Statements], T]) -> T:
        try:
            with self._database.transaction():
                return work(self)
        except self._trouble as error:
            lost = bool(self._database.closed) or self._database.broken
            raise _Broken(" ".join(str(error).split()), lost=lost) from error

    def run(self, sql: str, values: Sequence[object] = ()) -> int:
        return self._database.execute(_numbered(sql), tuple(values)).rowcount

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        return self._database.execute(_numbered(sql), tuple(values)).fetchall()

    def close(self) -> None:
        with suppress(self._trouble):
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

    def connect() -> _Connection:
        try:
            return _Postgres(url) if url else _Sqlite(path)
        except (OSError, sqlite3.Error) as error:
            raise _Broken(str(error), lost=True) from error

    hint = (
        "check that the server of serve.database runs and lets you in"
        if url
        else f"make room for {str(path)!r}, make it writable, or set another state_dir"
    )
    database = Database(connect, hint=hint)
    try:
        await database.start()
        yield database
    finally:
        await database.stop()
