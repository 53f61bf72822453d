"""Journal of one run in a separate folder, safe against a crash at any byte.

events.jsonl   events, one line each
kept.jsonl     paid results, one line each, durable before Assay uses them
blobs, trees   the files of each tree
lock           locked by the process that works on the run
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, get_args

import anyio
from anyio import to_thread

from assay.contracts.chat import ChatEvent
from assay.contracts.errors import JournalError
from assay.contracts.events import Passing, RunEvent
from assay.contracts.jsonable import jsonable
from assay.contracts.workspace import Tree
from assay.files import JsonlFile, make_folder, sync_folder
from assay.storage import lock
from assay.storage.blob_store import BlobStore
from assay.storage.codec import event_from_json, fields_of, line_of, parse_lines, read_log
from assay.storage.layers import LayerStore

EVENTS: Final = "events.jsonl"
KEPT: Final = "kept.jsonl"

Event = TypeVar("Event", RunEvent, ChatEvent)
Listener = Callable[[Event], None]
"""Receives each event in the event loop, after the write. Must not block."""

_PASSING: Final = get_args(Passing)
_MOST_TREES: Final = 16


class EventLog(Generic[Event]):
    """The events of one folder. Open during its `async with`, in one process at a time.

    Raises:
        UsageError: On entering, if another process has it open.
        JournalError: On entering, if the record cannot be read.
    """

    noun: ClassVar[str]

    def __init__(
        self,
        folder: Path,
        *,
        listeners: tuple[Listener[Event], ...] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self._listeners = listeners
        self._clock = clock
        self._life = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            try:
                await to_thread.run_sync(self._prepare)
                await stack.enter_async_context(lock.hold(self.folder, what=self.noun))
                await to_thread.run_sync(self._open, stack)
            except OSError as error:
                raise JournalError(
                    f"the {self.noun}'s folder {str(self.folder)!r} cannot be used: "
                    f"{error.strerror}"
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

    def _prepare(self) -> None:
        """Create what the lock needs."""

    def _open(self, stack: AsyncExitStack) -> None:
        self._events = self._open_file(EVENTS, stack)

    def _open_file(self, name: str, stack: AsyncExitStack) -> JsonlFile:
        file = JsonlFile(self.folder / name)
        stack.callback(file.close)
        return file

    def _line(self, event: Event, **fields: Any) -> bytes:
        return line_of({**fields, "at": self._clock(), "event": jsonable(event)})

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def _unwritten(self, error: OSError) -> JournalError:
        return JournalError(
            f"the {self.noun} cannot be written down: {error.strerror}",
            hint=f"make room on the disk that has {str(self.folder)!r}",
        )


class DiskJournal(EventLog[RunEvent]):
    """Implements `Journal`.

    If the disk is full, an event stays in memory, and the next `keep` or `store_tree` writes it or
    raises.
    """

    noun = "run"

    def __init__(
        self,
        folder: Path,
        *,
        listeners: tuple[Listener[RunEvent], ...] = (),
        clock: Callable[[], float] = time.time,
        layers: LayerStore | None = None,
    ) -> None:
        super().__init__(folder, listeners=listeners, clock=clock)
        self._blobs = BlobStore(folder, layers)
        self._trees: dict[str, Tree] = {}
        """The trees that were used last: steps of a run load the same few again and again."""
        self._keys: set[str] = set()
        self._values: dict[str, bytes] = {}
        self._pending: list[bytes] = []
        self._writing = anyio.Lock()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._durably(self._events.sync)
        finally:
            await super().__aexit__(kind, error, traceback)

    def emit(self, event: RunEvent, *, key: str = "") -> None:
        """Write an event unless it is transient, then pass it to every listener."""
        if key in self._keys:
            return
        if not isinstance(event, _PASSING):
            self._pending.append(self._line(event, key=key))
            with suppress(OSError):
                self._write_pending()
            if key:
                self._keys.add(key)
        self._tell(event)

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
            self._kept.append(line, durable=True)

        await self._durably(write)
        self._values[key] = line

    async def store_tree(self, tree: Tree) -> str:
        """Store the files of a tree durably; returns their digest."""
        if self._trees.get(tree.digest) is tree:
            return tree.digest

        def write() -> None:
            self._events.sync()
            self._blobs.store(tree)

        await self._durably(write)
        self._remember(tree)
        return tree.digest

    async def load_tree(self, digest: str) -> Tree:
        """Load a stored tree and check each file by its digest."""
        tree = self._trees.get(digest)
        if tree is None:
            tree = await to_thread.run_sync(self._blobs.load, digest)
            self._remember(tree)
        return tree

    def _remember(self, tree: Tree) -> None:
        # Two trees with the same files may differ in their links: the last one counts.
        self._trees.pop(tree.digest, None)
        self._trees[tree.digest] = tree
        while len(self._trees) > _MOST_TREES:
            del self._trees[next(iter(self._trees))]

    def _prepare(self) -> None:
        make_folder(self.folder)

    def _open(self, stack: AsyncExitStack) -> None:
        self._blobs.prepare()
        super()._open(stack)
        self._kept = self._open_file(KEPT, stack)
        sync_folder(self.folder)
        for fields in parse_lines(self.folder / EVENTS, self._events.found, dict):
            self._keys.add(str(fields.get("key", "")))
        self._keys.discard("")
        keys = parse_lines(self.folder / KEPT, self._kept.found, _key_of_value)
        self._values.update(zip(keys, self._kept.found, strict=True))

    def _write_pending(self) -> None:
        while self._pending:
            self._events.append(self._pending[0])
            del self._pending[0]

    async def _durably(self, write: Callable[[], None]) -> None:
        # A partial line would be worse than a short wait for the disk.
        with anyio.CancelScope(shield=True):
            async with self._writing:
                try:
                    # In the thread that adds events, so that no two write at the same time.
                    self._write_pending()
                    await to_thread.run_sync(write)
                except OSError as error:
                    raise self._unwritten(error) from error


def _key_of_value(fields: Mapping[str, Any]) -> str:
    if not isinstance(fields["value"], dict):
        raise TypeError("a value is a table")
    return str(fields.get("key", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """One stored event."""

    at: float
    """Seconds since the epoch."""
    key: str
    event: RunEvent


def read_events(folder: Path) -> Iterator[RecordedEvent]:
    """Read the events of a run; raises the errors of `read_log`."""
    return read_log(
        folder / EVENTS,
        lambda fields: RecordedEvent(
            at=float(fields["at"]),
            key=str(fields["key"]),
            event=event_from_json(fields["event"]),
        ),
    )
