"""Store of all sessions of a user: one folder each.

The log of a session is safe against a crash at any byte.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from anyio import to_thread

from assay.contracts.chat import (
    ArtifactSource,
    CellOutputDelta,
    ChatEvent,
    StoredArtifact,
    TurnStarted,
    is_passing,
)
from assay.contracts.errors import JournalError, UsageError
from assay.contracts.workspace import Tree, TreeFile
from assay.files import make_folder, write_file
from assay.storage import lock
from assay.storage.codec import chat_event_from_json, parse_lines, read_log
from assay.storage.folder_store import FolderStore
from assay.storage.journal import EVENTS, EventLog, Listener

FILES: Final = "files"
ARTIFACTS: Final = "artifacts"
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME: Final = 80
_MOST_EQUAL_NAMES: Final = 10_000
_TITLE_CHARS: Final = 80


class SessionRecord(EventLog[ChatEvent]):
    """Implements `ChatLog`."""

    noun = "session"

    def __init__(
        self,
        folder: Path,
        *,
        listeners: tuple[Listener[ChatEvent], ...] = (),
        clock: Callable[[], float] = time.time,
        sync_later: bool = False,
    ) -> None:
        super().__init__(folder, listeners=listeners, clock=clock)
        self.events: tuple[ChatEvent, ...] = ()
        """The events at opening."""
        self._sync_later = sync_later
        """Whether `settle` makes events durable outside of the event loop, instead of `emit`."""

    def _open(self, stack: AsyncExitStack) -> None:
        for name in (FILES, ARTIFACTS):
            make_folder(self.folder / name)
        super()._open(stack)
        self.events = tuple(parse_lines(self.folder / EVENTS, self._events.found, _event))

    def emit(self, event: ChatEvent) -> None:
        """Write an event unless it is transient, then pass it to every listener."""
        if not is_passing(event):
            if not (self.folder / EVENTS).exists():
                # A write to a deleted file would be lost.
                raise JournalError(
                    f"the session's folder {str(self.folder)!r} was removed while it was open",
                    hint="`assay chat` begins another session",
                )
            # Cell output need not wait for the disk: the end of the cell does.
            durable = not (self._sync_later or isinstance(event, CellOutputDelta))
            try:
                self._events.append(self._line(event), durable=durable)
            except OSError as error:
                raise self._unwritten(error) from error
        self._tell(event)

    async def settle(self) -> None:
        """Make all events durable.

        Raises:
            JournalError: If that cannot be done.
        """
        try:
            await to_thread.run_sync(self._events.sync)
        except OSError as error:
            raise self._unwritten(error) from error

    async def keep_file(self, path: PurePosixPath, content: bytes) -> None:
        """Store a file that the user put into the workspace."""
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise UsageError(f"{str(path)!r} is not a name in the workspace")
        await to_thread.run_sync(self._write, self.folder / FILES / path, content)

    async def files(self) -> Tree:
        """Return all files that the user put into the workspace."""
        return await to_thread.run_sync(self._read_files)

    async def keep_exhibit(
        self, name: str, content: bytes, *, media_type: str, source: ArtifactSource, path: str = ""
    ) -> StoredArtifact:
        """Store an artifact under a safe, unused name."""
        place = self._free_place(name)
        await to_thread.run_sync(self._write, place, content)
        return StoredArtifact(
            name=place.name,
            media_type=media_type,
            size_bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            source=source,
            path=path,
        )

    def _free_place(self, name: str) -> Path:
        safe = PurePosixPath(_NOT_IN_A_NAME.sub("-", name)[-_LONGEST_NAME:].lstrip(".-") or "file")
        for number in range(1, _MOST_EQUAL_NAMES):
            place = self.folder / ARTIFACTS / f"{safe.stem}-{number}{safe.suffix}"
            if not place.exists():
                return place
        raise JournalError(f"the session has too many files called {name!r}")

    def _write(self, place: Path, content: bytes) -> None:
        try:
            make_folder(place.parent)
            write_file(place, content)
        except OSError as error:
            raise JournalError(
                f"{place.name!r} cannot be kept: {error.strerror}",
                hint=f"make room on the disk that has {str(self.folder)!r}",
            ) from error

    def _read_files(self) -> Tree:
        home = self.folder / FILES
        found: dict[PurePosixPath, TreeFile] = {}
        for place in sorted(home.rglob("*")):
            if place.is_file() and not place.is_symlink():
                found[PurePosixPath(place.relative_to(home))] = TreeFile(place.read_bytes())
        return Tree(files=found)


def _event(fields: dict[str, Any]) -> ChatEvent:
    return chat_event_from_json(fields.get("event"))


def read_session_events(folder: Path) -> tuple[ChatEvent, ...]:
    """Read the events of a session; raises the errors of `read_log`."""
    return tuple(read_log(folder / EVENTS, _event))


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


class SessionStore(FolderStore):
    """The sessions below `STATE_DIR/sessions`."""

    noun = "session"
    request = "session.json"
    dated_by = (EVENTS, request)
    hints = ("`assay chat` begins one", "`assay sessions list` shows them all")

    def __init__(self, state_dir: Path, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(state_dir / "sessions")
        self._clock = clock

    def create(self, title: str = "") -> Session:
        """Create a session with a new name.

        Raises:
            JournalError: If it cannot be written.
        """
        return self._read(self.place(_request(title, self._clock())).name)

    def list(self) -> tuple[Session, ...]:
        """Return all sessions, the most recently used first."""
        return tuple(map(self._read, self.names()))

    def open(self, name: str = "") -> Session:
        """Find a session by name or prefix; without one, the most recently used.

        Raises:
            UsageError: If no session matches, or several do.
            JournalError: If it cannot be read.
        """
        session = self._read(self.find(name))
        if session.trouble:
            raise JournalError(f"the session {session.id!r} cannot be read: {session.trouble}")
        return session

    def rename(self, name: str, title: str) -> Session:
        """Change the title of a session; raises the errors of `open`."""
        session = self.open(name)
        try:
            write_file(session.folder / self.request, _request(title, session.created_at))
        except OSError as error:
            raise JournalError(f"the title cannot be written: {error.strerror}") from error
        return self._read(session.id)

    def _read(self, name: str) -> Session:
        title, created_at, turns, trouble = "", 0.0, 0, ""
        place = self.folder / name
        try:
            about = cast("dict[str, Any]", json.loads((place / self.request).read_bytes()))
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
            id=name,
            folder=place,
            title=title,
            created_at=created_at,
            changed_at=self.date_of(name),
            turns=turns,
            in_use=lock.is_held(place),
            trouble=trouble,
        )


def _request(title: str, created_at: float) -> bytes:
    text = json.dumps({"title": title, "created_at": created_at}, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"
