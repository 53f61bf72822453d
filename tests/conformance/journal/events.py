"""Events are told and written once, in order; what only passes by is told."""

from assay.contracts.errors import JournalError
from assay.contracts.events import (
    AttemptStarted,
    OutputDelta,
    RunEvent,
    RunResumed,
    TextDelta,
)
from tests.conformance.journal.promise import JournalSubject, promise

_FIRST = AttemptStarted(attempt=1, action="sample")
_SECOND = AttemptStarted(attempt=2, action="repair")


@promise
async def events_are_told_and_written_in_order(subject: JournalSubject) -> None:
    one: list[RunEvent] = []
    other: list[RunEvent] = []
    async with subject.open(one.append, other.append) as journal:
        journal.emit(_FIRST, key="1")
        journal.emit(_SECOND)

    assert one == other == [_FIRST, _SECOND]
    assert subject.written() == (_FIRST, _SECOND)


@promise
async def an_event_is_written_before_it_is_told(subject: JournalSubject) -> None:
    written: list[tuple[RunEvent, ...]] = []
    async with subject.open(lambda _: written.append(subject.written())) as journal:
        journal.emit(_FIRST)

    assert written == [(_FIRST,)]


@promise
async def an_event_whose_key_is_known_is_neither_told_nor_written(subject: JournalSubject) -> None:
    told: list[RunEvent] = []
    async with subject.open(told.append) as journal:
        journal.emit(_FIRST, key="same")
        journal.emit(_SECOND, key="same")

    assert told == [_FIRST]
    assert subject.written() == (_FIRST,)


@promise
async def keys_are_known_when_the_run_is_taken_up_again(subject: JournalSubject) -> None:
    async with subject.open() as journal:
        journal.emit(_FIRST, key="same")
    told: list[RunEvent] = []
    async with subject.open(told.append) as journal:
        journal.emit(_FIRST, key="same")
        journal.emit(_SECOND, key="other")

    assert told == [_SECOND]
    assert subject.written() == (_FIRST, _SECOND)


@promise
async def events_without_a_key_are_written_each_time(subject: JournalSubject) -> None:
    async with subject.open() as journal:
        journal.emit(RunResumed(run="a"))
        journal.emit(RunResumed(run="a"))

    assert subject.written() == (RunResumed(run="a"), RunResumed(run="a"))


@promise
async def what_passes_by_is_told_and_not_written(subject: JournalSubject) -> None:
    passing = (
        TextDelta(attempt=1, text="def f"),
        OutputDelta(attempt=1, text="1 passed"),
    )
    told: list[RunEvent] = []
    async with subject.open(told.append) as journal:
        for event in passing:
            journal.emit(event)

    assert told == list(passing)
    assert subject.written() == ()


@promise
async def an_event_without_room_is_told_and_the_next_keeping_says_so(
    subject: JournalSubject,
) -> None:
    told: list[RunEvent] = []
    async with subject.open(told.append) as journal:
        with subject.no_room():
            journal.emit(_FIRST)
            try:
                await journal.keep("key", {})
            except JournalError:
                said = True
            else:
                said = False

    assert told == [_FIRST]
    assert said, "an event was lost, and nobody was told"
    assert subject.written() == (_FIRST,), "there was room again, and the event was not written"
