"""What is written down stays, once, and without secrets."""

from dataclasses import replace

import anyio

from assay.contracts.lessons import Failure
from tests.conformance.memory.failures import DURATIONS, query_for
from tests.conformance.memory.promise import MemorySubject, promise

_SECRET = "sk-proj-Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MA"  # noqa: S105 - made up, to be looked for


@promise
async def what_was_learnt_outlives_the_memory(subject: MemorySubject) -> None:
    async with subject.open() as memory:
        await memory.learn(DURATIONS)
    async with subject.open() as memory:
        assert len(await memory.recall(query_for(DURATIONS, "failure"))) == 1
        assert len(await memory.recall(query_for(DURATIONS, "plan"))) == 1


@promise
async def what_one_learns_another_who_has_it_open_recalls(subject: MemorySubject) -> None:
    async with subject.open() as one, subject.open() as other:
        assert await other.recall(query_for(DURATIONS, "plan")) == ()
        await one.learn(DURATIONS)

        assert len(await other.recall(query_for(DURATIONS, "plan"))) == 1


@promise
async def the_same_failure_again_is_one_record_seen_twice(subject: MemorySubject) -> None:
    async with subject.open() as memory:
        await memory.learn(DURATIONS)
        await memory.learn(replace(DURATIONS, run="run-9"))

        (lesson,) = await memory.recall(query_for(DURATIONS, "plan"))

        assert "2 times" in lesson.evidence
        assert "run-9" in lesson.evidence


@promise
async def told_the_same_twice_by_a_run_it_counts_once(subject: MemorySubject) -> None:
    async with subject.open() as memory:
        await memory.learn(DURATIONS)
        await memory.learn(DURATIONS)

        (lesson,) = await memory.recall(query_for(DURATIONS, "plan"))

        assert "once" in lesson.evidence


@promise
async def secrets_are_never_shown_again(subject: MemorySubject) -> None:
    leaky = replace(
        DURATIONS,
        lesson=f"set api_key={_SECRET} first",
        message=f"AuthError: {_SECRET} was refused",
        signature=f"AuthError: {_SECRET} was refused (in client.py: ask)",
    )
    async with subject.open() as memory:
        await memory.learn(leaky)

        (lesson,) = await memory.recall(query_for(leaky, "plan"))

        assert _SECRET not in lesson.text + lesson.evidence
        assert "first" in lesson.text


@promise
async def enormous_failures_are_cut_and_kept(subject: MemorySubject) -> None:
    huge = replace(
        DURATIONS, action=DURATIONS.action + "x = 1\n" * 200_000, message="it broke " * 50_000
    )
    async with subject.open() as memory:
        await memory.learn(huge)

        assert len(await memory.recall(query_for(huge, "failure"))) == 1


@promise
async def strange_text_is_kept(subject: MemorySubject) -> None:
    strange = replace(DURATIONS, message="\ud800 \x00 half a character", action="\udfff\x00")
    async with subject.open() as memory:
        await memory.learn(strange)

        assert len(await memory.recall(query_for(strange, "failure"))) == 1


@promise
async def failures_learnt_side_by_side_are_all_kept(subject: MemorySubject) -> None:
    failures = [_failure(number) for number in range(24)]
    async with subject.open() as memory:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for failure in failures:
                    tasks.start_soon(memory.learn, failure)
        for failure in failures:
            (lesson,) = await memory.recall(query_for(failure, "failure"))
            assert lesson.text == failure.lesson


def _failure(number: int) -> Failure:
    name = f"{'abcdefgh'[number % 8]}{'xyz'[number // 8]}"
    return replace(
        DURATIONS,
        signature=f"NameError: name '{name}' is not defined (in durations.py: parse)",
        message=f"NameError: name '{name}' is not defined",
        lesson=f"define {name} first",
        run=f"run-{number}",
    )
