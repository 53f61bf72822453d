"""When a model is asked again, when not, and how long it is left alone in between."""

from collections.abc import Sequence

import pytest

from assay.contracts.errors import (
    AssayError,
    BudgetExceededError,
    ContextOverflowError,
    ModelRefusedError,
    ModelUnavailableError,
)
from assay.contracts.messages import Message, ModelInfo, Reply, Request, StopReason, Usage
from assay.contracts.ports import Model, OnText, ignore_text
from assay.models.open import RetryingModel, RetryPolicy

REQUEST = Request(messages=(Message(role="user", text="hello"),))
REPLY = Reply(
    message=Message(role="assistant", text="hi"),
    stop_reason=StopReason.ENDED,
    usage=Usage(calls=1),
    model="some",
)
INFO = ModelInfo(context_tokens=10, max_output_tokens=10, tool_calls=False, price=None)


class FailingModel:
    """Says a word and fails, once for each error it is given; then it answers."""

    name = "some:model"
    info = INFO

    def __init__(self, errors: Sequence[AssayError], *, says: str = "") -> None:
        self.errors = list(errors)
        self.says = says
        self.asked = 0

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        assert request == REQUEST
        self.asked += 1
        if self.errors:
            if self.says:
                on_text(self.says)
            raise self.errors.pop(0)
        on_text("hi")
        return REPLY


class Waits(list[float]):
    """A sleep that takes no time and remembers."""

    async def __call__(self, wait_s: float) -> None:
        self.append(wait_s)


def unavailable(retry_after_s: float | None = None) -> ModelUnavailableError:
    return ModelUnavailableError("gone", retry_after_s=retry_after_s, not_charged=True)


async def test_a_model_that_comes_back_is_asked_until_it_does() -> None:
    model, waits = FailingModel([unavailable()] * 3), Waits()
    retrying: Model = RetryingModel(model, sleep=waits, chance=lambda: 1.0)

    reply = await retrying.reply(REQUEST)

    assert reply == REPLY
    assert model.asked == 4
    assert waits == [0.5, 1.0, 2.0]
    assert (retrying.name, retrying.info) == (model.name, model.info)


async def test_chance_shortens_a_wait_by_half_at_most() -> None:
    waits = Waits()
    await RetryingModel(FailingModel([unavailable()]), sleep=waits, chance=lambda: 0.0).reply(
        REQUEST
    )

    assert waits == [0.25]


async def test_a_wait_of_ones_own_is_bounded() -> None:
    policy = RetryPolicy(attempts=6, first_wait_s=1.0, longest_wait_s=3.0)
    waits = Waits()
    model = FailingModel([unavailable()] * 5)
    await RetryingModel(model, policy, sleep=waits, chance=lambda: 1.0).reply(REQUEST)

    assert waits == [1.0, 2.0, 3.0, 3.0, 3.0]


async def test_the_wait_that_a_provider_asks_for_is_kept() -> None:
    waits = Waits()
    await RetryingModel(FailingModel([unavailable(45.0), unavailable(0.0)]), sleep=waits).reply(
        REQUEST
    )

    assert waits == [45.0, 0.0]


async def test_after_the_last_attempt_the_failure_passes() -> None:
    model, waits = FailingModel([unavailable()] * 9), Waits()

    with pytest.raises(ModelUnavailableError, match="gone"):
        await RetryingModel(model, RetryPolicy(attempts=3), sleep=waits).reply(REQUEST)

    assert (model.asked, len(waits)) == (3, 2)


async def test_a_wait_that_is_too_long_is_not_begun() -> None:
    model, waits = FailingModel([unavailable(100.0), unavailable(100.0)]), Waits()

    with pytest.raises(ModelUnavailableError) as raised:
        await RetryingModel(model, RetryPolicy(total_wait_s=150.0), sleep=waits).reply(REQUEST)

    assert waits == [100.0]
    assert raised.value.retry_after_s == 100.0


@pytest.mark.parametrize(
    "error",
    [
        ModelRefusedError("no"),
        ContextOverflowError("too long"),
        BudgetExceededError("spent"),
        ModelUnavailableError("silent, and so perhaps charged"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_will_not_change_is_not_asked_again(error: AssayError) -> None:
    model, waits = FailingModel([error]), Waits()

    with pytest.raises(type(error)):
        await RetryingModel(model, sleep=waits).reply(REQUEST)

    assert (model.asked, waits) == (1, [])


async def test_text_that_was_told_is_never_told_again() -> None:
    model, heard = FailingModel([unavailable()], says="It beg"), list[str]()

    with pytest.raises(ModelUnavailableError):
        await RetryingModel(model, sleep=Waits()).reply(REQUEST, on_text=heard.append)

    assert heard == ["It beg"]


async def test_text_that_nobody_heard_may_be_said_again() -> None:
    model = FailingModel([unavailable()], says="It beg")

    assert await RetryingModel(model, sleep=Waits()).reply(REQUEST) == REPLY


async def test_a_failure_before_the_first_word_is_hidden_from_the_listener() -> None:
    heard: list[str] = []
    await RetryingModel(FailingModel([unavailable()]), sleep=Waits()).reply(
        REQUEST, on_text=heard.append
    )

    assert heard == ["hi"]
