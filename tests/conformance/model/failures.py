"""Promises about how a model fails: one error for each kind of trouble, and no key in any."""

import traceback
from collections.abc import Iterator
from dataclasses import replace

import anyio

from assay.contracts.errors import (
    BudgetExceededError,
    ContextOverflowError,
    ModelRefusedError,
    ModelUnavailableError,
)
from assay.contracts.messages import Message, ModelInfo, Reply, Request
from assay.contracts.ports import Model, OnText, ignore_text
from tests.conformance.model.promise import promise
from tests.conformance.model.questions import DEADLINE_S, QUESTION, ask, failure_of
from tests.conformance.model.subject import (
    Answers,
    BadJson,
    Behaviour,
    CorruptStream,
    CutsOff,
    FailsMidway,
    Kind,
    LocksOut,
    ModelSubject,
    NoResponse,
    Overflows,
    Says,
    TurnsAway,
)

_BEGUN = ("It begins",)


async def _is_unavailable(subject: ModelSubject, behaviour: Behaviour) -> ModelUnavailableError:
    async with subject.open(behaviour) as opened:
        error = await failure_of(opened.model)

    assert isinstance(error, ModelUnavailableError), f"{behaviour} became {error!r}"
    return error


@promise(TurnsAway)
async def a_wait_asked_for_in_seconds_is_passed_on(subject: ModelSubject) -> None:
    error = await _is_unavailable(subject, TurnsAway(kind=Kind.RATE_LIMITED, retry_after="7"))

    assert error.retry_after_s == 7.0, error.retry_after_s


@promise(TurnsAway)
async def a_wait_until_a_date_is_passed_on(subject: ModelSubject) -> None:
    past = "Wed, 21 Oct 2015 07:28:00 GMT"
    error = await _is_unavailable(subject, TurnsAway(kind=Kind.RATE_LIMITED, retry_after=past))

    assert error.retry_after_s == 0.0, error.retry_after_s


@promise(TurnsAway)
async def a_rate_limit_without_a_wait_says_none(subject: ModelSubject) -> None:
    error = await _is_unavailable(subject, TurnsAway(kind=Kind.RATE_LIMITED))

    assert error.retry_after_s is None, error.retry_after_s


@promise(TurnsAway)
async def a_broken_server_is_unavailable(subject: ModelSubject) -> None:
    await _is_unavailable(subject, TurnsAway(kind=Kind.BROKEN))


@promise(TurnsAway, observed=True)
async def a_failed_request_is_not_sent_again(subject: ModelSubject) -> None:
    """Who wraps a model decides on that, and counts it."""
    async with subject.open(TurnsAway(kind=Kind.RATE_LIMITED, retry_after="0")) as opened:
        await failure_of(opened.model)

        assert len(opened.peer.received) == 1, f"sent {len(opened.peer.received)} times"


@promise(FailsMidway)
async def a_failure_in_mid_answer_is_unavailable(subject: ModelSubject) -> None:
    await _is_unavailable(subject, FailsMidway(pieces=_BEGUN))


@promise(NoResponse)
async def silence_is_unavailable(subject: ModelSubject) -> None:
    await _is_unavailable(subject, NoResponse())
    await _is_unavailable(subject, NoResponse(pieces=_BEGUN))


@promise(CutsOff)
async def an_answer_that_breaks_off_is_unavailable(subject: ModelSubject) -> None:
    for politely in (False, True):
        await _is_unavailable(subject, CutsOff(politely=politely))
        await _is_unavailable(subject, CutsOff(pieces=_BEGUN, politely=politely))


@promise(CorruptStream)
async def what_is_no_json_is_unavailable(subject: ModelSubject) -> None:
    await _is_unavailable(subject, CorruptStream())
    await _is_unavailable(subject, CorruptStream(pieces=_BEGUN))


@promise(BadJson)
async def a_page_in_place_of_an_answer_is_unavailable(subject: ModelSubject) -> None:
    await _is_unavailable(subject, BadJson())


@promise(Overflows)
async def a_request_that_is_too_long_overflows(subject: ModelSubject) -> None:
    long = Message(role="user", text="word " * subject.info.context_tokens)
    async with subject.open(Overflows()) as opened:
        error = await failure_of(opened.model, replace(QUESTION, messages=(long,)))

    assert isinstance(error, ContextOverflowError), repr(error)


@promise(TurnsAway)
async def a_request_that_is_not_liked_is_refused(subject: ModelSubject) -> None:
    async with subject.open(TurnsAway(kind=Kind.MALFORMED)) as opened:
        error = await failure_of(opened.model)

    assert isinstance(error, ModelRefusedError), repr(error)
    assert not isinstance(error, ContextOverflowError), repr(error)


@promise(LocksOut)
async def a_wrong_key_is_refused_and_never_shown(subject: ModelSubject) -> None:
    async with subject.open(LocksOut()) as opened:
        error = await failure_of(opened.model)
        shown = repr(opened.model)

    assert isinstance(error, ModelRefusedError), repr(error)
    assert error.hint, "the person is not told what to do"
    for text in (shown, *_all_words_of(error)):
        assert subject.secret not in text, f"the key is shown in {text!r}"


@promise(Says)
async def a_listener_that_fails_is_not_mistaken_for_the_model(subject: ModelSubject) -> None:
    class ListenerError(ValueError):
        """Of a kind that a wire format might catch for its own."""

    def fail(text: str) -> None:
        raise ListenerError(text)

    async with subject.open(Says(pieces=("one", "two"))) as opened:
        try:
            await ask(opened.model, on_text=fail)
        except ListenerError:
            return
    raise AssertionError("the listener's own error did not come through")


@promise(Says, observed=True)
async def giving_up_closes_the_connection(subject: ModelSubject) -> None:
    begun = anyio.Event()
    async with (
        subject.open(Says(pieces=("one", "two"), waits_after=1)) as opened,
        anyio.create_task_group() as tasks,
    ):

        async def ask_and_listen() -> None:
            await ask(opened.model, on_text=lambda _: begun.set())

        tasks.start_soon(ask_and_listen)
        with anyio.fail_after(DEADLINE_S):
            await begun.wait()
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await opened.peer.wait_until_left()


@promise(Answers)
async def after_giving_up_it_answers_again(subject: ModelSubject) -> None:
    async with subject.open(Answers()) as opened:
        with anyio.CancelScope() as scope:
            await ask(opened.model, on_text=lambda _: scope.cancel())
        reply = await ask(opened.model)

    assert reply.message.text.strip(), reply


@promise(Answers, observed=True)
async def a_call_that_a_cap_forbids_is_not_made(subject: ModelSubject) -> None:
    async with subject.open(Answers()) as opened:
        error = await failure_of(_Capped(opened.model))

        assert isinstance(error, BudgetExceededError), repr(error)
        assert len(opened.peer.received) == 0, opened.peer.received


class _Capped:
    """A model with nothing left to spend."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        del request, on_text
        raise BudgetExceededError("nothing is left")


def _all_words_of(error: BaseException) -> Iterator[str]:
    yield "".join(traceback.format_exception(error))
    seen: BaseException | None = error
    while seen is not None:
        yield from (str(seen), repr(seen), str(vars(seen)))
        seen = seen.__cause__ or seen.__context__
