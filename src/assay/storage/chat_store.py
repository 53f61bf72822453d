"""Store of all sessions of a user: one folder each, found by name or prefix.

The log of a session is safe against a crash at any byte.
"""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Final, Self, cast

from anyio import to_thread

from assay.contracts.chat import (
    CellOutputDelta,
    ChatEvent,
    Exhibit,
    ExhibitSource,
    TurnStarted,
    is_passing,
)
from assay.contracts.errors import JournalError, UsageError
from assay.contracts.workspace import Tree, TreeFile
from assay.storage import lock
from assay.storage.codec import dialogue_from_json, event_to_json, fields_of, line_of
from assay.storage.run_names import new_name
from assay.storage.secure_files import JsonlFile, make_folder, whole_lines, write_file

EVENTS: Final = "events.jsonl"
FILES: Final = "files"
ARTIFACTS: Final = "artifacts"

DialogueListener = Callable[[ChatEvent], None]
"""Receives each event in the event loop, after the write. Must not block."""

_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME: Final = 80
_MOST_EQUAL_NAMES: Final = 10_000


class SessionRecord:
    """Implements `ChatLog`. Open during its `async with`, in one process at a time.

    Raises:
        UsageError: On entering, if another process has the session open.
        JournalError: On entering, if the record cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        *,
        listeners: tuple[DialogueListener, ...] = (),
        clock: Callable[[], float] = time.time,
        sync_later: bool = False,
    ) -> None:
        self.folder = folder
        self.events: tuple[ChatEvent, ...] = ()
        """The events at opening."""
        self._listeners = listeners
        self._clock = clock
        self._sync_later = sync_later
        """Whether `settle` makes events durable outside of the event loop, instead of `emit`."""
        self._life = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(lock.hold(self.folder, what="session"))
                await to_thread.run_sync(self._open, stack)
            except OSError as error:
                raise JournalError(
                    f"the session's folder {str(self.folder)!r} cannot be used: {error.strerror}"
                ) from error
            self._life = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._life.__aexit__(kind, error, traceback)

    def _open(self, stack: AsyncExitStack) -> None:
        for name in (FILES, ARTIFACTS):
            make_folder(self.folder / name)
        self._lines = JsonlFile(self.folder / EVENTS)
        stack.callback(self._lines.close)
        self.events = tuple(_events(self.folder / EVENTS, self._lines.found))

    def emit(self, event: ChatEvent) -> None:
        """Write an event unless it is transient, then pass it to every listener."""
        if not is_passing(event):
            fields = {"at": self._clock(), "event": event_to_json(event)}
            if not (self.folder / EVENTS).exists():
                # A write to a deleted file would be lost.
                raise JournalError(
                    f"the session's folder {str(self.folder)!r} was removed while it was open",
                    hint="`assay chat` begins another session",
                )
            try:
                # Cell output need not wait for the disk: the end of the cell does.
                if self._sync_later or isinstance(event, CellOutputDelta):
                    self._lines.append_at_once(line_of(fields))
                else:
                    self._lines.append_durably(line_of(fields))
            except OSError as error:
                raise self._unwritten(error) from error
        for listener in self._listeners:
            listener(event)

    async def settle(self) -> None:
        """Make all events durable.

        Raises:
            JournalError: If that cannot be done.
        """
        try:
            await to_thread.run_sync(self._lines.sync)
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> JournalError:
        return JournalError(
            f"the session cannot be written down: {error.strerror}",
            hint=f"make room on the disk that has {str(self.folder)!r}",
        )

    async def keep_file(self, path: PurePosixPath, content: bytes) -> None:
        """Store a file that the user put into the workspace."""
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise UsageError(f"{str(path)!r} is not a name in the workspace")
        await to_thread.run_sync(self._write, self.folder / FILES / path, content)

    async def files(self) -> Tree:
        """Return all files that the user put into the workspace."""
        return await to_thread.run_sync(self._read_files)

    async def keep_exhibit(
        self, name: str, content: bytes, *, media_type: str, source: ExhibitSource, path: str = ""
    ) -> Exhibit:
        """Store an artifact under a safe, unused name."""
        place = self._free_place(name)
        await to_thread.run_sync(self._write, place, content)
        return Exhibit(
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


def read_session_events(folder: Path) -> tuple[ChatEvent, ...]:
    """Read a session, also while a process has it open. Skips an incomplete last line.

    Raises:
        JournalError: If a line is damaged, or of a later version.
    """
    path = folder / EVENTS
    try:
        return tuple(_events(path, whole_lines(path)))
    except OSError as error:
        raise JournalError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def _events(path: Path, lines: list[bytes]) -> Iterator[ChatEvent]:
    for number, line in enumerate(lines, 1):
        try:
            yield dialogue_from_json(fields_of(line).get("event"))
        except JournalError as error:
            raise JournalError(f"{path}:{number}: {error}", hint=error.hint) from error


_ABOUT: Final = "session.json"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]*")
_TITLE_CHARS: Final = 80
_NAME_TRIES: Final = 100


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
            for _ in range(_NAME_TRIES):
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
