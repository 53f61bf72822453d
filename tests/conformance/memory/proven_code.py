"""What becomes of helpers that runs have proven."""

from dataclasses import replace

from assay.contracts.lessons import RecallQuery
from tests.conformance.memory.failures import SNIPPET
from tests.conformance.memory.promise import MemorySubject, promise

_ENOUGH = 6
_ALIKE = RecallQuery(moment="plan", goal="Write pages.py: turn the title of a page into a slug")
_UNLIKE = RecallQuery(moment="plan", goal="Read sales.csv with pandas and draw a bar chart")


@promise
async def a_helper_is_offered_to_goals_that_are_alike_and_to_no_others(
    subject: MemorySubject,
) -> None:
    async with subject.open() as memory:
        await memory.keep(SNIPPET)
    async with subject.open() as memory:
        (found,) = await memory.offer(_ALIKE)

        assert replace(found, id="") == SNIPPET
        assert await memory.offer(_UNLIKE) == ()


@promise
async def a_helper_whose_test_failed_is_not_offered_until_it_is_proven_again(
    subject: MemorySubject,
) -> None:
    async with subject.open() as memory:
        await memory.keep(SNIPPET)
        (found,) = await memory.offer(_ALIKE)
        await memory.tested(found.id, passed=True)
        assert await memory.offer(_ALIKE) == (found,)

        await memory.tested(found.id, passed=False)
        assert await memory.offer(_ALIKE) == ()

        await memory.keep(SNIPPET)
        assert await memory.offer(_ALIKE) == (found,)


@promise
async def a_helper_that_only_harms_is_not_offered_any_more(subject: MemorySubject) -> None:
    async with subject.open() as memory:
        await memory.keep(SNIPPET)
        (found,) = await memory.offer(_ALIKE)
        for _ in range(_ENOUGH):
            await memory.judge((found.id, "nobody"), helped=False)

        assert await memory.offer(_ALIKE) == ()


@promise
async def a_helper_is_for_its_project_and_one_without_project_for_all(
    subject: MemorySubject,
) -> None:
    async with subject.open(project="shop") as memory:
        await memory.keep(SNIPPET)
        assert len(await memory.offer(_ALIKE)) == 1
    async with subject.open(project="other") as memory:
        assert await memory.offer(_ALIKE) == ()
    async with subject.open() as memory:
        await memory.keep(SNIPPET)
    async with subject.open(project="other") as memory:
        assert len(await memory.offer(_ALIKE)) == 1


@promise
async def a_helper_with_a_secret_is_not_kept(subject: MemorySubject) -> None:
    async with subject.open() as memory:
        await memory.keep(replace(SNIPPET, source=f"{SNIPPET.source}\napi_key = 'abcdef123456'\n"))

        assert await memory.offer(_ALIKE) == ()
