"""Resilient memory: after a store error, a run continues without lessons and reports it once."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from assay.contracts.errors import AssayError
from assay.contracts.lessons import Failure, Lesson, RecallQuery, Snippet
from assay.contracts.ports import LessonStore

_T = TypeVar("_T")


class ForgivingMemory:
    """Forwards calls to another memory, and works without it after an error."""

    def __init__(self, memory: LessonStore, on_notice: Callable[[str], None]) -> None:
        self._memory = memory
        self._on_notice = on_notice
        self._told = False

    async def recall(self, cue: RecallQuery) -> tuple[Lesson, ...]:
        return await self._or_else((), self._memory.recall(cue))

    async def learn(self, failure: Failure) -> None:
        await self._or_else(None, self._memory.learn(failure))

    async def offer(self, cue: RecallQuery) -> tuple[Snippet, ...]:
        return await self._or_else((), self._memory.offer(cue))

    async def keep(self, skill: Snippet) -> None:
        await self._or_else(None, self._memory.keep(skill))

    async def tested(self, skill: str, *, passed: bool) -> None:
        await self._or_else(None, self._memory.tested(skill, passed=passed))

    async def judge(self, ids: tuple[str, ...], *, helped: bool) -> None:
        await self._or_else(None, self._memory.judge(ids, helped=helped))

    async def _or_else(self, nothing: _T, answer: Awaitable[_T]) -> _T:
        try:
            return await answer
        except AssayError as error:
            if not self._told:
                self._told = True
                self._on_notice(f"going on without the memory of failures: {error}")
            return nothing
