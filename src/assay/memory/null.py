"""The absent memory, so that nobody has to ask whether there is one."""

from assay.contracts.lessons import Cue, Failure, Lesson, Skill


class NoMemory:
    """Remembers nothing."""

    async def recall(self, cue: Cue) -> tuple[Lesson, ...]:
        del cue
        return ()

    async def learn(self, failure: Failure) -> None:
        del failure

    async def offer(self, cue: Cue) -> tuple[Skill, ...]:
        del cue
        return ()

    async def keep(self, skill: Skill) -> None:
        del skill

    async def tested(self, skill: str, *, passed: bool) -> None:
        del skill, passed

    async def judge(self, ids: tuple[str, ...], *, helped: bool) -> None:
        del ids, helped
