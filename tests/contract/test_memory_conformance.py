"""The memory in a file keeps every promise of the port; Chroma has tests of its own."""

import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from assay.contracts.ports import LessonStore
from assay.memory.stored_memory import ResilientMemory, open_sqlite_memory
from assay.memory.types import Scope
from tests.conformance.memory import MEMORY_PROMISES, MemoryPromise, MemorySubject
from tests.support.requirements import require


class InSqlite:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "state" / "memory.sqlite"

    def open(
        self, *, project: str = "", environment: str = ""
    ) -> AbstractAsyncContextManager[LessonStore]:
        return open_sqlite_memory(self.path, Scope(project=project, environment=environment))


class Forgiving:
    def __init__(self, folder: Path) -> None:
        self.inner = InSqlite(folder)

    @asynccontextmanager
    async def open(
        self, *, project: str = "", environment: str = ""
    ) -> AsyncGenerator[LessonStore]:
        async with self.inner.open(project=project, environment=environment) as memory:
            yield ResilientMemory(memory, pytest.fail)


@pytest.fixture(params=["sqlite", "sqlite without numpy", "forgiving"])
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> MemorySubject:
    match request.param:
        case "sqlite without numpy":
            monkeypatch.setitem(sys.modules, "numpy", None)
            return InSqlite(tmp_path)
        case "forgiving":
            return Forgiving(tmp_path)
        case _:
            require("numpy", available=find_spec("numpy") is not None, why="it is not installed")
            return InSqlite(tmp_path)


@pytest.mark.parametrize("promise", MEMORY_PROMISES, ids=lambda promise: promise.name)
async def test_memory_keeps(promise: MemoryPromise, subject: MemorySubject) -> None:
    await promise(subject)
