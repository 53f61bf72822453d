"""Null memory, for runs without a memory."""

from assay.contracts.lessons import Failure, Lesson, RecallQuery, Snippet


class NoMemory:
    """Stores nothing and returns no lessons."""

    async def recall(self, cue: RecallQuery) -> tuple[Lesson, ...]:
        del cue
        return ()

    async def learn(self, failure: Failure) -> None:
        del failure

    async def offer(self, cue: RecallQuery) -> tuple[Snippet, ...]:
        del cue
        return ()

    async def keep(self, skill: Snippet) -> None:
        del skill

    async def tested(self, skill: str, *, passed: bool) -> None:
        del skill, passed

    async def judge(self, ids: tuple[str, ...], *, helped: bool) -> None:
        del ids, helped
