"""Journal of one run in a separate folder, safe against a crash at any byte.

events.jsonl   events, one line each
kept.jsonl     paid results, one line each, durable before Assay uses them
blobs, trees   the files of each tree
lock           locked by the process that works on the run
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, get_args

import anyio
from anyio import to_thread

from assay.contracts.errors import JournalError
from assay.contracts.events import Passing, RunEvent
from assay.contracts.workspace import Tree
from assay.storage import lock
from assay.storage.blob_store import BlobStore
from assay.storage.codec import event_from_json, event_to_json, fields_of, line_of
from assay.storage.secure_files import JsonlFile, make_folder, sync_folder, whole_lines

EVENTS: Final = "events.jsonl"
KEPT: Final = "kept.jsonl"

Listener = Callable[[RunEvent], None]
"""Receives each event in the event loop, after the write. Must not block."""

_PASSING: Final = get_args(Passing)


class DiskJournal:
    """Implements `Journal`. Open during its `async with`, in one process at a time.

    If the disk is full, an event stays in memory, and the next `keep` or `store_tree` writes it or
    raises.

    Raises:
        UsageError: On entering, if another process works on the run.
        JournalError: On entering, if the record cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        *,
        listeners: tuple[Listener, ...] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self._listeners = listeners
        self._clock = clock
        self._blobs = BlobStore(folder)
        self._keys: set[str] = set()
        self._values: dict[str, bytes] = {}
        self._writing = anyio.Lock()
        self._life = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            try:
                await to_thread.run_sync(make_folder, self.folder)
                await stack.enter_async_context(lock.hold(self.folder))
                await to_thread.run_sync(self._open, stack)
            except OSError as error:
                raise JournalError(
                    f"the run's folder {str(self.folder)!r} cannot be used: {error.strerror}"
                ) from error
            self._life = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._durably(self._events.sync)
        finally:
            await self._life.__aexit__(kind, error, traceback)

    def emit(self, event: RunEvent, *, key: str = "") -> None:
        """Write an event unless it is transient, then pass it to every listener."""
        if key in self._keys:
            return
        if not isinstance(event, _PASSING):
            fields = {"key": key, "at": self._clock(), "event": event_to_json(event)}
            self._events.append(line_of(fields))
            if key:
                self._keys.add(key)
        for listener in self._listeners:
            listener(event)

    async def recall(self, key: str) -> Mapping[str, Any] | None:
        """Return the value under this key; None if there is none."""
        line = self._values.get(key)
        # Parsed for each call, so that callers cannot change each other's value.
        return None if line is None else fields_of(line)["value"]

    def kept_under(self, prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Return all values under keys with this prefix, by the rest of the key."""
        for key, line in self._values.items():
            if key.startswith(prefix):
                yield key.removeprefix(prefix), fields_of(line)["value"]

    async def keep(self, key: str, value: Mapping[str, Any]) -> None:
        """Store JSON durably under this key, in place of an earlier value."""
        line = line_of({"key": key, "value": dict(value)})

        def write() -> None:
            # Events first: a paid result without them says nothing.
            self._events.sync()
            self._kept.append_durably(line)

        await self._durably(write)
        self._values[key] = line

    async def store_tree(self, tree: Tree) -> str:
        """Store the files of a tree durably; returns their digest."""

        def write() -> None:
            self._events.sync()
            self._blobs.store(tree)

        await self._durably(write)
        return tree.digest

    async def load_tree(self, digest: str) -> Tree:
        """Load a stored tree and check each file by its digest."""
        return await to_thread.run_sync(self._blobs.load, digest)

    def _open(self, stack: AsyncExitStack) -> None:
        self._blobs.prepare()
        self._events = JsonlFile(self.folder / EVENTS)
        stack.callback(self._events.close)
        self._kept = JsonlFile(self.folder / KEPT)
        stack.callback(self._kept.close)
        sync_folder(self.folder)
        for _, fields in _numbered_fields(self.folder / EVENTS, self._events.found):
            self._keys.add(str(fields.get("key", "")))
        self._keys.discard("")
        lines = self._kept.found
        for number, fields in _numbered_fields(self.folder / KEPT, lines):
            if not isinstance(fields.get("value"), dict):
                raise JournalError(f"{self.folder / KEPT}:{number}: this line is damaged")
            self._values[str(fields.get("key", ""))] = lines[number - 1]

    async def _durably(self, write: Callable[[], None]) -> None:
        # A partial line would be worse than a short wait for the disk.
        with anyio.CancelScope(shield=True):
            async with self._writing:
                try:
                    # In the thread that adds events, so that no two write at the same time.
                    self._events.flush()
                    await to_thread.run_sync(write)
                except OSError as error:
                    raise JournalError(
                        f"the run cannot be written down: {error.strerror}",
                        hint=f"make room on the disk that has {str(self.folder)!r}",
                    ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """One stored event."""

    at: float
    """Seconds since the epoch."""
    key: str
    event: RunEvent


def read_events(folder: Path) -> Iterator[RecordedEvent]:
    """Read the events of a run, also while it runs. Skips an incomplete last line.

    Raises:
        JournalError: If a line is damaged, or of a later version.
    """
    path = folder / EVENTS
    try:
        lines = whole_lines(path)
    except OSError as error:
        raise JournalError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    for number, fields in _numbered_fields(path, lines):
        try:
            yield RecordedEvent(
                at=float(fields["at"]),
                key=str(fields["key"]),
                event=event_from_json(fields["event"]),
            )
        except JournalError as error:
            raise JournalError(f"{path}:{number}: {error}", hint=error.hint) from error
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(f"{path}:{number}: this line is damaged") from error


def _numbered_fields(path: Path, lines: list[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        try:
            yield number, fields_of(line)
        except JournalError as error:
            raise JournalError(f"{path}:{number}: {error}", hint=error.hint) from error
