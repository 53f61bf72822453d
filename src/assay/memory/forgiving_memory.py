"""A memory whose troubles do not end a run: it goes on without lessons, and says so once."""

from collections.abc import Callable

from assay.contracts.errors import AssayError
from assay.contracts.lessons import Cue, Failure, Lesson
from assay.contracts.ports import FailureMemory


class ForgivingMemory:
    """Passes everything on to another memory, and does without it when it fails."""

    def __init__(self, memory: FailureMemory, on_notice: Callable[[str], None]) -> None:
        self._memory = memory
        self._on_notice = on_notice
        self._told = False

    async def recall(self, cue: Cue) -> tuple[Lesson, ...]:
        try:
            return await self._memory.recall(cue)
        except AssayError as error:
            self._tell(error)
            return ()

    async def learn(self, failure: Failure) -> None:
        try:
            await self._memory.learn(failure)
        except AssayError as error:
            self._tell(error)

    async def judge(self, lessons: tuple[str, ...], *, helped: bool) -> None:
        try:
            await self._memory.judge(lessons, helped=helped)
        except AssayError as error:
            self._tell(error)

    def _tell(self, error: AssayError) -> None:
        if not self._told:
            self._told = True
            self._on_notice(f"going on without the memory of failures: {error}")
