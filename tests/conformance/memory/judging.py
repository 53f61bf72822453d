"""What becomes of lessons that help, and of those that harm."""

from dataclasses import replace

from assay.contracts.lessons import Failure
from tests.conformance.memory.failures import DURATIONS, query_for
from tests.conformance.memory.promise import MemorySubject, promise

_ENOUGH = 6
_OTHER = replace(
    DURATIONS,
    signature="ValueError: N (in durations.py: parse_duration)",
    message="ValueError: 7",
    lesson="count from zero",
)


@promise
async def a_lesson_that_only_harms_is_not_shown_any_more(subject: MemorySubject) -> None:
    async with subject.open() as memory:
        await memory.learn(DURATIONS)
        await _judge(subject, DURATIONS, helped=False, times=_ENOUGH)

        assert await memory.recall(query_for(DURATIONS, "failure")) == ()
        assert await memory.recall(query_for(DURATIONS, "plan")) == ()
        assert await memory.recall(query_for(DURATIONS, "action")) == ()


@promise
async def one_bad_experience_is_not_enough_to_retire(subject: MemorySubject) -> None:
    async with subject.open() as memory:
        await memory.learn(DURATIONS)
        await _judge(subject, DURATIONS, helped=False, times=1)

        assert len(await memory.recall(query_for(DURATIONS, "failure"))) == 1


@promise
async def a_harmful_lesson_is_not_revived_by_the_same_failure(subject: MemorySubject) -> None:
    async with subject.open() as memory:
        await memory.learn(DURATIONS)
        await _judge(subject, DURATIONS, helped=False, times=_ENOUGH)
        await memory.learn(replace(DURATIONS, run="run-8"))

        assert await memory.recall(query_for(DURATIONS, "failure")) == ()


@promise
async def another_remedy_takes_the_place_of_a_harmful_one(subject: MemorySubject) -> None:
    async with subject.open() as memory:
        await memory.learn(DURATIONS)
        await _judge(subject, DURATIONS, helped=False, times=_ENOUGH)
        await memory.learn(replace(DURATIONS, run="run-8", lesson="use datetime instead"))

        (lesson,) = await memory.recall(query_for(DURATIONS, "failure"))

        assert lesson.text == "use datetime instead"


@promise
async def what_has_helped_comes_before_what_has_not(subject: MemorySubject) -> None:
    async with subject.open() as memory:
        await memory.learn(DURATIONS)
        await memory.learn(_OTHER)
        await _judge(subject, DURATIONS, helped=False, times=2)
        await _judge(subject, _OTHER, helped=True, times=3)

        lessons = await memory.recall(query_for(DURATIONS, "plan"))

        assert lessons[0].text == "count from zero"
        assert len(lessons) == 2
        assert "helped 3 of 3" in lessons[0].evidence


@promise
async def a_lesson_nobody_knows_is_passed_over(subject: MemorySubject) -> None:
    async with subject.open() as memory:
        await memory.learn(DURATIONS)
        await memory.judge(("no such lesson", ""), helped=False)
        await memory.judge((), helped=True)

        assert len(await memory.recall(query_for(DURATIONS, "failure"))) == 1


async def _judge(subject: MemorySubject, failure: Failure, *, helped: bool, times: int) -> None:
    """Judge in another sitting, as later runs do."""
    async with subject.open() as memory:
        (lesson,) = await memory.recall(query_for(failure, "failure"))
        for _ in range(times):
            await memory.judge((lesson.id,), helped=helped)
