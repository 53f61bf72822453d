"""Who sees what: projects, environments, and what is for all."""

from dataclasses import replace

from tests.conformance.memory.failures import CHART, DURATIONS, query_for
from tests.conformance.memory.promise import MemorySubject, promise


@promise
async def a_project_keeps_its_failures_to_itself(subject: MemorySubject) -> None:
    async with subject.open(project="one") as memory:
        await memory.learn(DURATIONS)
    async with subject.open(project="two") as memory:
        assert await memory.recall(query_for(DURATIONS, "failure")) == ()
        assert await memory.recall(query_for(DURATIONS, "plan")) == ()
        assert await memory.recall(query_for(DURATIONS, "action")) == ()
    async with subject.open(project="one") as memory:
        assert len(await memory.recall(query_for(DURATIONS, "plan"))) == 1


@promise
async def what_is_learnt_outside_of_projects_is_for_all(subject: MemorySubject) -> None:
    async with subject.open() as memory:
        await memory.learn(DURATIONS)
    async with subject.open(project="two") as memory:
        assert len(await memory.recall(query_for(DURATIONS, "plan"))) == 1


@promise
async def what_two_projects_had_to_learn_a_third_knows(subject: MemorySubject) -> None:
    for project in ("one", "two"):
        async with subject.open(project=project) as memory:
            await memory.learn(replace(DURATIONS, run=f"run of {project}"))
    async with subject.open(project="three") as memory:
        assert len(await memory.recall(query_for(DURATIONS, "failure"))) == 1


@promise
async def failed_assertions_of_two_projects_stay_theirs(subject: MemorySubject) -> None:
    failed = replace(
        CHART, signature="AssertionError: assert N == N (in test_a.py)", message="assert 5 == 6"
    )
    for project in ("one", "two"):
        async with subject.open(project=project) as memory:
            await memory.learn(replace(failed, run=f"run of {project}"))
    async with subject.open(project="three") as memory:
        assert await memory.recall(query_for(failed, "failure")) == ()


@promise
async def a_lesson_expires_with_its_environment(subject: MemorySubject) -> None:
    async with subject.open(environment="old") as memory:
        await memory.learn(CHART)
    async with subject.open(environment="new") as memory:
        assert await memory.recall(query_for(CHART, "failure")) == ()
        assert await memory.recall(query_for(CHART, "plan")) == ()


@promise
async def a_lesson_learnt_again_holds_in_the_new_environment(subject: MemorySubject) -> None:
    async with subject.open(environment="old") as memory:
        await memory.learn(CHART)
    async with subject.open(environment="new") as memory:
        await memory.learn(replace(CHART, run="run-7"))

        assert len(await memory.recall(query_for(CHART, "plan"))) == 1


@promise
async def a_lesson_of_no_known_environment_holds_in_all(subject: MemorySubject) -> None:
    async with subject.open() as memory:
        await memory.learn(CHART)
    async with subject.open(environment="new") as memory:
        assert len(await memory.recall(query_for(CHART, "plan"))) == 1
