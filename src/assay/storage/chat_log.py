"""Chat log: one session in a separate folder on disk, safe against a crash at any byte.

events.jsonl   messages and actions, one line each
files          files that the user put into the workspace, by path
artifacts      figures, tables and files that the session produced
lock           locked by the process that has the session open
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Final, Self

from anyio import to_thread

from assay.contracts.chat import (
    CellOutputDelta,
    ChatEvent,
    Exhibit,
    ExhibitSource,
    is_passing,
)
from assay.contracts.errors import JournalError, UsageError
from assay.contracts.workspace import Tree, TreeFile
from assay.storage import lock
from assay.storage.codec import dialogue_from_json, event_to_json, fields_of, line_of
from assay.storage.jsonl import JsonlFile, whole_lines
from assay.storage.secure_files import make_folder, write_file

EVENTS: Final = "events.jsonl"
FILES: Final = "files"
ARTIFACTS: Final = "artifacts"

DialogueListener = Callable[[ChatEvent], None]
"""Receives each event in the event loop, after the write. Must not block."""

_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME: Final = 80
_TRIES: Final = 10_000


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
        for number in range(1, _TRIES):
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
