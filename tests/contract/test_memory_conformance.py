"""Every way of remembering failures keeps every promise of the port."""

import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from assay.contracts.ports import FailureMemory
from assay.memory.forgiving_memory import ForgivingMemory
from assay.memory.records import Place
from assay.memory.stored_memory import open_sqlite_memory
from assay.testing.memory_conformance import MEMORY_PROMISES, MemoryPromise, MemorySubject
from tests.support.requirements import require


class InSqlite:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "state" / "memory.sqlite"

    def open(
        self, *, project: str = "", environment: str = ""
    ) -> AbstractAsyncContextManager[FailureMemory]:
        return open_sqlite_memory(self.path, Place(project=project, environment=environment))


class Forgiving:
    def __init__(self, folder: Path) -> None:
        self.inner = InSqlite(folder)

    @asynccontextmanager
    async def open(
        self, *, project: str = "", environment: str = ""
    ) -> AsyncGenerator[FailureMemory]:
        async with self.inner.open(project=project, environment=environment) as memory:
            yield ForgivingMemory(memory, pytest.fail)


class InChroma:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "chroma"

    def open(
        self, *, project: str = "", environment: str = ""
    ) -> AbstractAsyncContextManager[FailureMemory]:
        from assay.memory.chroma_store import open_chroma_memory  # noqa: PLC0415 - an extra

        place = Place(project=project, environment=environment)
        return open_chroma_memory(place, folder=self.folder)


@pytest.fixture(params=["sqlite", "sqlite without numpy", "forgiving", "chroma"])
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> MemorySubject:
    match request.param:
        case "sqlite without numpy":
            monkeypatch.setitem(sys.modules, "numpy", None)
            return InSqlite(tmp_path)
        case "forgiving":
            return Forgiving(tmp_path)
        case "chroma":
            installed = find_spec("chromadb") is not None
            require("chroma", available=installed, why="chromadb is not installed")
            return InChroma(tmp_path)
        case _:
            require("numpy", available=find_spec("numpy") is not None, why="it is not installed")
            return InSqlite(tmp_path)


@pytest.mark.parametrize("promise", MEMORY_PROMISES, ids=lambda promise: promise.name)
async def test_memory_keeps(promise: MemoryPromise, subject: MemorySubject) -> None:
    await promise(subject)
