"""SQLite file of the memory: safe for many processes, with atomic writes and damage detection.

A damaged file is renamed and reported. A file that a newer version wrote is left unchanged.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from assay.contracts.errors import JournalError, UsageError

MEMORY: Final = "memory.sqlite"
"""The name of the file in the state directory."""
SCHEMA_VERSION: Final = 3
BUSY_S: Final = 20.0
_APPLICATION: Final = 0x41535359  # "ASSY"
_DAMAGED: Final = ".damaged-"
_BESIDES: Final = ("", "-wal", "-shm")
_LOCK: Final = ".lock"
_SUSPECT: Final = ".suspect"
"""Suffix of the marker for a file damaged in use; the next opening checks it completely."""
_QUICKLY_CHECKED: Final = 16 << 20
"""The size up to which every opening checks the whole file; larger files would take too long."""

_SCHEMA: Final = """
CREATE TABLE records (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    revision INTEGER NOT NULL,
    retired TEXT NOT NULL, shared INTEGER NOT NULL, project TEXT NOT NULL,
    environment TEXT NOT NULL,
    seen INTEGER NOT NULL, used INTEGER NOT NULL, helped INTEGER NOT NULL, harmed INTEGER NOT NULL,
    first_seen REAL NOT NULL, last_seen REAL NOT NULL, last_helped REAL NOT NULL,
    signature TEXT NOT NULL, kind TEXT NOT NULL, essence TEXT NOT NULL, frame TEXT NOT NULL,
    library TEXT NOT NULL, language TEXT NOT NULL, tool TEXT NOT NULL,
    run TEXT NOT NULL, goal_print TEXT NOT NULL, goal TEXT NOT NULL, lesson TEXT NOT NULL,
    message TEXT NOT NULL, action TEXT NOT NULL, fix TEXT NOT NULL
);
CREATE INDEX records_by_signature ON records (signature);
CREATE INDEX records_by_essence ON records (essence);
-- Has all that decides who sees a record, so that the long texts are not read for it.
CREATE INDEX records_by_revision ON records (revision, retired, shared, project, environment);
CREATE INDEX records_by_age ON records (last_seen);
CREATE TABLE vectors (
    embedder TEXT NOT NULL, facet TEXT NOT NULL,
    record INTEGER NOT NULL REFERENCES records (key) ON DELETE CASCADE,
    vector BLOB NOT NULL,
    PRIMARY KEY (embedder, facet, record)
) WITHOUT ROWID;
CREATE INDEX vectors_by_record ON vectors (record);
CREATE TABLE occurrences (
    id TEXT PRIMARY KEY,
    record INTEGER NOT NULL REFERENCES records (key) ON DELETE CASCADE,
    at REAL NOT NULL, run TEXT NOT NULL, again INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX occurrences_by_record ON occurrences (record);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('revision', 0), ('forgotten', 0);
CREATE TABLE snippets (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
"""
Notice = Callable[[str], None]


def ignore_notice(text: str) -> None:
    """Ignore a notice."""
    del text


def open_database(path: Path, on_notice: Notice = ignore_notice) -> sqlite3.Connection:
    """Open the file, or create it; the caller closes it.

    Raises:
        UsageError: If a newer version wrote it.
        JournalError: If it cannot be opened or created.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path):
            if not _is_sound(path):
                on_notice(
                    f"the memory {str(path)!r} is damaged; it was set aside as "
                    f"{set_aside(path).name!r}, and a new one was begun"
                )
            return _opened(path)
    except (OSError, sqlite3.Error) as error:
        raise JournalError(
            f"the memory of failures cannot be opened: {error}",
            hint=f"look at {str(path)!r}, or continue with `--memory off`",
        ) from error


def set_aside(path: Path) -> Path:
    """Rename a damaged file and its companions, so that no process opens them."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    target = path.with_name(f"{path.name}{_DAMAGED}{moment}-{os.getpid()}")
    for ending in _BESIDES:
        with suppress(FileNotFoundError):
            path.with_name(path.name + ending).rename(target.with_name(target.name + ending))
    return target


def damaged_files(path: Path) -> tuple[Path, ...]:
    """Return the renamed damaged files, the oldest first."""
    found = path.parent.glob(f"{path.name}{_DAMAGED}*")
    return tuple(sorted(file for file in found if not file.name.endswith(_BESIDES[1:])))


@contextmanager
def _alone(path: Path) -> Generator[None]:
    """Exclude other processes: the change to write-ahead logging does not wait for locks."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path.with_name(path.name + _LOCK), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_sound(path: Path) -> bool:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return True
    try:
        with closing(_connected(path)) as database:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            suspect = path.with_name(path.name + _SUSPECT)
            if size > _QUICKLY_CHECKED and not suspect.exists():
                return True
            suspect.unlink(missing_ok=True)
            return database.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            return False
        raise


def suspect_damage(path: Path) -> None:
    """Request a check of the whole file at the next opening."""
    with suppress(OSError):
        path.with_name(path.name + _SUSPECT).touch(mode=0o600)


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error means a damaged database, not a busy file or a full disk."""
    code = getattr(error, "sqlite_errorcode", 0) or 0
    return code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _connected(path: Path) -> sqlite3.Connection:
    # Created here, so that no other user can read it at any moment.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    # Transactions begin and end explicitly. One thread at a time uses the connection.
    return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _opened(path: Path) -> sqlite3.Connection:
    database = _connected(path)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        # Writes survive a power failure; lessons are rare enough to wait for the disk.
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA foreign_keys = ON")
        _adopt_schema(database, path)
    except BaseException:
        database.close()
        raise
    return database


def _adopt_schema(database: sqlite3.Connection, path: Path) -> None:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version == SCHEMA_VERSION:
        return
    if version:
        raise UsageError(
            f"the memory {str(path)!r} was written by another version of Assay (schema {version}, "
            f"this one knows {SCHEMA_VERSION})",
            hint="use that version, rename the file, or continue with `--memory off`",
        )
    database.executescript(
        f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {_APPLICATION};"
        f" PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )
