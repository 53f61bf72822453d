"""Both ways of keeping a run's journal keep every promise of the port."""

import resource
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from assay.contracts.events import RunEvent
from assay.contracts.ports import Journal
from assay.contracts.workspace import Tree
from assay.storage.journal import DiskJournal, read_events
from tests.conformance.journal import JOURNAL_PROMISES, JournalPromise, JournalSubject
from tests.doubles.memory_journal import Memory, MemoryJournal


class OnDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, *listeners: Callable[[RunEvent], None]) -> AbstractAsyncContextManager[Journal]:
        return DiskJournal(self.folder, listeners=listeners)

    def written(self) -> tuple[RunEvent, ...]:
        return tuple(recorded.event for recorded in read_events(self.folder))

    @contextmanager
    def no_room(self) -> Generator[None]:
        # The kernel refuses every byte this process writes to a file, as a full disk would.
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def damage_tree(self, digest: str) -> None:
        assert (self.folder / "trees" / f"{digest}.json").is_file()
        largest = max((self.folder / "blobs").iterdir(), key=lambda path: path.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[0] ^= 1
        largest.write_bytes(content)


class InMemory:
    def __init__(self) -> None:
        self.memory = Memory()

    @asynccontextmanager
    async def open(self, *listeners: Callable[[RunEvent], None]) -> AsyncGenerator[Journal]:
        yield MemoryJournal(self.memory, listeners=listeners)

    def written(self) -> tuple[RunEvent, ...]:
        return tuple(self.memory.events)

    @contextmanager
    def no_room(self) -> Generator[None]:
        self.memory.full = True
        yield
        self.memory.full = False

    def damage_tree(self, digest: str) -> None:
        self.memory.trees[digest] = Tree()


@pytest.fixture(params=["disk", "memory"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> JournalSubject:
    return OnDisk(tmp_path / "run") if request.param == "disk" else InMemory()


@pytest.mark.parametrize("promise", JOURNAL_PROMISES, ids=lambda promise: promise.name)
async def test_journal_keeps(promise: JournalPromise, subject: JournalSubject) -> None:
    await promise(subject)
