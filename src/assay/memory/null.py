"""The absent memory, so that nobody has to ask whether there is one."""

from assay.contracts.lessons import Failure, Lesson, RecallQuery, Snippet


class NoMemory:
    """Remembers nothing."""

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
