"""What was kept under a key is there, also after the journal was opened again."""

from typing import Any

from assay.contracts.errors import JournalError
from tests.conformance.journal.promise import JournalSubject, promise

_VALUE: dict[str, Any] = {
    "text": 'two\nlines, "quoted", \u2028 and half a pair: \ud83d',
    "number": 0.1,
    "nothing": None,
    "list": [1, [True, {}]],
}


@promise
async def what_was_never_kept_is_none(subject: JournalSubject) -> None:
    async with subject.open() as journal:
        assert await journal.recall("nothing") is None


@promise
async def what_was_kept_is_recalled_exactly(subject: JournalSubject) -> None:
    async with subject.open() as journal:
        await journal.keep("reply 1\n", _VALUE)

        assert await journal.recall("reply 1\n") == _VALUE


@promise
async def what_was_kept_outlives_the_journal(subject: JournalSubject) -> None:
    async with subject.open() as journal:
        await journal.keep("a", _VALUE)
        await journal.keep("b", {})
    async with subject.open() as journal:
        assert await journal.recall("a") == _VALUE
        assert await journal.recall("b") == {}


@promise
async def what_is_kept_later_replaces_what_was_kept(subject: JournalSubject) -> None:
    async with subject.open() as journal:
        await journal.keep("a", {"n": 1})
        await journal.keep("a", {"n": 2})

        assert await journal.recall("a") == {"n": 2}
    async with subject.open() as journal:
        assert await journal.recall("a") == {"n": 2}


@promise
async def nobody_can_change_what_was_kept(subject: JournalSubject) -> None:
    given: dict[str, Any] = {"list": [1]}
    async with subject.open() as journal:
        await journal.keep("a", given)
        given["list"].append(2)
        recalled = dict(await journal.recall("a") or {})
        recalled["list"].append(3)

        assert await journal.recall("a") == {"list": [1]}


@promise
async def without_room_keeping_fails_and_leaves_no_trace(subject: JournalSubject) -> None:
    async with subject.open() as journal:
        await journal.keep("a", {"n": 1})
        with subject.no_room():
            try:
                await journal.keep("a", {"n": 2})
            except JournalError:
                refused = True
            else:
                refused = False

        assert refused, "it was said to be kept, and there was no room"
        assert await journal.recall("a") == {"n": 1}
        await journal.keep("b", {"n": 3})
    async with subject.open() as journal:
        assert await journal.recall("a") == {"n": 1}
        assert await journal.recall("b") == {"n": 3}
