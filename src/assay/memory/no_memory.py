"""The absent memory, so that nobody has to ask whether there is one."""

from assay.contracts.lessons import Cue, Failure, Lesson


class NoMemory:
    """Remembers nothing."""

    async def recall(self, cue: Cue) -> tuple[Lesson, ...]:
        del cue
        return ()

    async def learn(self, failure: Failure) -> None:
        del failure

    async def judge(self, lessons: tuple[str, ...], *, helped: bool) -> None:
        del lessons, helped
