"""Store of all sessions of a user: one folder each, found by name or prefix."""

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from assay.contracts.chat import TurnStarted
from assay.contracts.errors import JournalError, UsageError
from assay.storage import lock
from assay.storage.chat_log import EVENTS, read_session_events
from assay.storage.run_names import new_name
from assay.storage.secure_files import make_folder, write_file

_ABOUT: Final = "session.json"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]*")
_TITLE_CHARS: Final = 80
_TRIES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session in a list."""

    id: str
    folder: Path
    title: str
    """The user's title, or the first message."""
    created_at: float
    """Seconds since the epoch."""
    changed_at: float
    turns: int
    in_use: bool
    trouble: str = ""
    """Why it cannot be read; empty if it can."""


class SessionStore:
    """The sessions below `STATE_DIR/sessions`. Blocking: commands read small files."""

    def __init__(self, state_dir: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.folder = state_dir / "sessions"
        self._clock = clock

    def create(self, title: str = "") -> Session:
        """Create a session with a new name.

        Raises:
            JournalError: If it cannot be written.
        """
        try:
            make_folder(self.folder)
            for _ in range(_TRIES):
                name = new_name()
                place = self.folder / name
                if not place.exists():
                    place.mkdir(mode=0o700)
                    self._write_about(place, title=title, created_at=self._clock())
                    return self._read(place)
        except OSError as error:
            raise JournalError(
                f"no session can be written below {str(self.folder)!r}: {error.strerror}",
                hint="make room there, or set another state_dir",
            ) from error
        raise JournalError(f"no name is free below {str(self.folder)!r}")

    def list(self) -> tuple[Session, ...]:
        """Return all sessions, the most recently used first."""
        if not self.folder.is_dir():
            return ()
        found = [self._read(place) for place in self.folder.iterdir() if _is_session(place)]
        return tuple(sorted(found, key=lambda session: session.changed_at, reverse=True))

    def open(self, name: str = "") -> Session:
        """Find a session by name or prefix; without one, the most recently used.

        Raises:
            UsageError: If no session matches, or several do.
            JournalError: If it cannot be read.
        """
        if _NAME.fullmatch(name) and _is_session(self.folder / name):
            return _readable(self._read(self.folder / name))
        sessions = self.list()
        if not sessions:
            raise UsageError("there are no sessions yet", hint="`assay chat` begins one")
        chosen = [session for session in sessions if session.id.startswith(name)]
        if not chosen:
            raise UsageError(
                f"there is no session {name!r}", hint="`assay sessions list` shows them all"
            )
        if name and len(chosen) > 1:
            raise UsageError(
                f"{name!r} begins the names of {len(chosen)} sessions",
                hint="give more of it: " + ", ".join(session.id for session in chosen[:4]),
            )
        return _readable(chosen[0])

    def rename(self, name: str, title: str) -> Session:
        """Change the title of a session; raises the errors of `open`."""
        session = self.open(name)
        try:
            self._write_about(session.folder, title=title, created_at=session.created_at)
        except OSError as error:
            raise JournalError(f"the title cannot be written: {error.strerror}") from error
        return self._read(session.folder)

    def delete(self, name: str) -> Session:
        """Delete a session with all its files; raises the errors of `open`.

        Raises:
            UsageError: If it is open in another process.
        """
        session = self.open(name)
        if session.in_use:
            raise UsageError(
                f"the session {session.id!r} is open elsewhere", hint="close it there first"
            )
        try:
            shutil.rmtree(session.folder)
        except OSError as error:
            raise JournalError(
                f"the session {session.id!r} cannot be removed: {error.strerror}"
            ) from error
        return session

    def _write_about(self, place: Path, *, title: str, created_at: float) -> None:
        text = json.dumps({"title": title, "created_at": created_at}, ensure_ascii=False)
        write_file(place / _ABOUT, text.encode("utf-8", "backslashreplace") + b"\n")

    def _read(self, place: Path) -> Session:
        title, created_at, turns, trouble = "", 0.0, 0, ""
        try:
            about = cast("dict[str, Any]", json.loads((place / _ABOUT).read_bytes()))
            title, created_at = str(about["title"]), float(about["created_at"])
            messages = [
                event.message
                for event in read_session_events(place)
                if isinstance(event, TurnStarted)
            ]
            turns = len(messages)
            title = title or (" ".join(messages[0].split())[:_TITLE_CHARS] if messages else "")
        except (JournalError, OSError, ValueError, KeyError, TypeError) as error:
            trouble = str(error)
        return Session(
            id=place.name,
            folder=place,
            title=title,
            created_at=created_at,
            changed_at=_changed_at(place),
            turns=turns,
            in_use=lock.is_held(place),
            trouble=trouble,
        )


def _readable(session: Session) -> Session:
    if session.trouble:
        raise JournalError(f"the session {session.id!r} cannot be read: {session.trouble}")
    return session


def _is_session(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink() and bool(_NAME.fullmatch(place.name))


def _changed_at(place: Path) -> float:
    for name in (EVENTS, _ABOUT):
        try:
            return (place / name).stat().st_mtime
        except OSError:
            continue
    return 0.0
