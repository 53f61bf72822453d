import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts.errors import (
    BudgetExceededError,
    ContextOverflowError,
    ModelRefusedError,
    ModelUnavailableError,
    UsageError,
)
from assay.contracts.messages import (
    Message,
    ModelInfo,
    Price,
    Reply,
    Request,
    ToolCall,
    ToolSpec,
    Usage,
)
from assay.contracts.ports import OnText, ignore_text
from assay.models.budget import Budget, Caps, MeteredModel, estimate_input_tokens
from assay.models.open import RetryingModel, RetryPolicy
from tests.doubles.scripted_model import INFO, ScriptedModel, says
from tests.support.apart import run_apart

PRICED = replace(INFO, price=Price(input_usd=2.0, output_usd=10.0))
UNPRICED = replace(INFO, price=None)
ASKED = Request(messages=(Message(role="user", text="x" * 300),), max_output_tokens=100)
MOST_USD = (estimate_input_tokens(ASKED) * 2.0 + 100 * 10.0) / 10**6
AT_ONCE = RetryPolicy(attempts=4, first_wait_s=0.0, longest_wait_s=0.0)


def used(input_tokens: int, output_tokens: int) -> Usage:
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, calls=1)


@dataclass
class BusyModel:
    """Takes a while, fails as it is told to, and knows what it has really cost."""

    outcome: Callable[[int], Usage | Exception]
    info: ModelInfo = PRICED
    name: str = "busy"
    started: int = 0
    cost_usd: list[float] = field(default_factory=list[float])

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        del request
        place, self.started = self.started, self.started + 1
        for _ in range(place % 7):
            await anyio.lowlevel.checkpoint()
        outcome = self.outcome(place)
        if isinstance(outcome, Exception):
            raise outcome
        assert self.info.price is not None
        price = self.info.price
        millionths = (
            outcome.input_tokens * price.input_usd + outcome.output_tokens * price.output_usd
        )
        self.cost_usd.append(millionths / 10**6)
        on_text("answer")
        return says("answer", usage=outcome)


async def ask_at_once(model: RetryingModel | MeteredModel, count: int) -> int:
    """Ask many times at once; return how often the budget said no."""
    refused = 0

    async def ask() -> None:
        nonlocal refused
        try:
            await model.reply(ASKED)
        except BudgetExceededError:
            refused += 1
        except (ModelUnavailableError, ModelRefusedError):
            pass

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(ask)
    return refused


async def test_a_reply_is_charged_with_what_it_took() -> None:
    meter = Budget()
    model = MeteredModel(ScriptedModel([says("yes", usage=used(1000, 10))], PRICED), meter)

    reply = await model.reply(ASKED)

    assert meter.spent == Usage(input_tokens=1000, output_tokens=10, calls=1, cost_usd=0.0021)
    assert reply.usage == meter.spent


async def test_cached_input_is_charged_at_its_own_price() -> None:
    info = replace(INFO, price=Price(input_usd=2.0, output_usd=10.0, cached_input_usd=0.2))
    usage = Usage(input_tokens=1000, cached_input_tokens=900, output_tokens=0, calls=1)
    meter = Budget()

    await MeteredModel(ScriptedModel([says("", usage=usage)], info), meter).reply(ASKED)

    assert meter.spent.cost_usd == pytest.approx(0.00038)


async def test_a_cost_that_the_provider_names_is_believed() -> None:
    meter = Budget()
    usage = replace(used(1000, 10), cost_usd=0.5)

    await MeteredModel(ScriptedModel([says("yes", usage=usage)], PRICED), meter).reply(ASKED)

    assert meter.spent.cost_usd == 0.5


async def test_a_provider_that_does_not_count_is_counted_for() -> None:
    meter = Budget()

    await MeteredModel(ScriptedModel([says("x" * 30, usage=Usage())], PRICED), meter).reply(ASKED)

    assert meter.spent.input_tokens == estimate_input_tokens(ASKED)
    assert meter.spent.output_tokens == 10
    assert meter.spent.calls == 1
    assert meter.spent.cost_usd


async def test_a_reply_that_nobody_could_parse_is_charged_like_any_other() -> None:
    meter = Budget(Caps(calls=2))
    model = MeteredModel(ScriptedModel([says("{broken"), says("{broken too")], PRICED), meter)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            int((await model.reply(ASKED)).message.text)

    with pytest.raises(BudgetExceededError, match="all 2 calls"):
        await model.reply(ASKED)

    assert meter.spent.calls == 2


@pytest.mark.parametrize(
    ("caps", "told"),
    [
        (Caps(usd=MOST_USD * 0.99), "could cost"),
        (Caps(tokens=estimate_input_tokens(ASKED) + 99), "could take"),
        (Caps(calls=0), "all 0 calls"),
    ],
)
async def test_what_could_pass_a_cap_is_not_sent(caps: Caps, told: str) -> None:
    inner = ScriptedModel([says("never")], PRICED)
    meter = Budget(caps)

    with pytest.raises(BudgetExceededError, match=told):
        await MeteredModel(inner, meter).reply(ASKED)

    assert inner.asked == []
    assert meter.spent == Usage()


@pytest.mark.parametrize(
    "caps",
    [Caps(usd=MOST_USD), Caps(tokens=estimate_input_tokens(ASKED) + 100), Caps(calls=1)],
)
async def test_what_just_fits_is_sent_and_then_nothing_is_left(caps: Caps) -> None:
    everything = used(estimate_input_tokens(ASKED), 100)
    model = MeteredModel(ScriptedModel([says("yes", usage=everything)] * 2, PRICED), Budget(caps))
    await model.reply(ASKED)

    with pytest.raises(BudgetExceededError):
        await model.reply(ASKED)


async def test_an_unknown_price_with_a_cap_in_dollars_is_refused() -> None:
    inner = ScriptedModel([says("never")], UNPRICED, name="acme:m1")

    with pytest.raises(BudgetExceededError, match="no price is known for 'acme:m1'") as caught:
        await MeteredModel(inner, Budget(Caps(usd=100.0))).reply(ASKED)

    assert '[models."acme:m1".price]' in caught.value.hint
    assert inner.asked == []


async def test_an_unknown_price_without_a_cap_in_dollars_makes_the_cost_unknown() -> None:
    meter = Budget(Caps(calls=3))
    unknown = MeteredModel(ScriptedModel([says("a")], UNPRICED), meter)
    known = MeteredModel(ScriptedModel([says("b", usage=used(1, 1))], PRICED), meter)
    await unknown.reply(ASKED)

    await known.reply(ASKED)

    assert meter.spent.cost_usd is None
    assert meter.spent.calls == 2


async def test_a_model_that_is_free_needs_no_money() -> None:
    meter = Budget(Caps(usd=0.0))

    await MeteredModel(ScriptedModel([says("a", usage=used(5, 5))]), meter).reply(ASKED)

    assert meter.spent.cost_usd == 0.0


async def test_what_a_call_under_way_may_take_is_not_left_for_others() -> None:
    meter = Budget(Caps(calls=2, tokens=1000, usd=1.0))
    held = meter.reserve("busy", PRICED, ASKED)

    assert meter.remaining.calls == 1
    assert meter.remaining.tokens == 1000 - held.tokens
    assert meter.remaining.usd == pytest.approx(1.0 - MOST_USD)
    assert meter.spent == Usage()

    meter.settle(held, Usage(input_tokens=1, calls=1))

    assert meter.remaining == Caps(calls=1, tokens=999, usd=1.0)


async def test_what_is_left_is_never_less_than_nothing() -> None:
    meter = Budget(Caps(calls=1, tokens=300, usd=0.01))
    held = meter.reserve("busy", PRICED, ASKED)

    meter.settle(held, Usage(input_tokens=10_000, calls=3, cost_usd=5.0))

    assert meter.remaining == Caps(calls=0, tokens=0, usd=0.0)


@pytest.mark.parametrize(
    "error",
    [
        ModelRefusedError("no"),
        ContextOverflowError("too long"),
        ModelUnavailableError("later", retry_after_s=3.0),
    ],
)
async def test_a_call_that_was_turned_away_is_a_call_and_nothing_else(error: Exception) -> None:
    meter = Budget()

    with pytest.raises(type(error)):
        await MeteredModel(BusyModel(lambda _: error), meter).reply(ASKED)

    assert meter.spent == Usage(calls=1)


async def test_a_call_of_unknown_outcome_is_charged_in_full() -> None:
    meter = Budget()
    model = MeteredModel(BusyModel(lambda _: ModelUnavailableError("silence")), meter)

    with pytest.raises(ModelUnavailableError):
        await model.reply(ASKED)

    assert meter.spent.output_tokens == 100
    assert meter.spent.cost_usd == pytest.approx(MOST_USD)
    assert meter.spent.calls == 1


async def test_an_answer_that_began_is_charged_in_full_whatever_the_error_says() -> None:
    class BreaksOff(ScriptedModel):
        async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
            del request
            on_text("beginn")
            raise ModelUnavailableError("overloaded", retry_after_s=1.0)

    meter = Budget()

    with pytest.raises(ModelUnavailableError):
        await MeteredModel(BreaksOff([], PRICED), meter).reply(ASKED)

    assert meter.spent.cost_usd == pytest.approx(MOST_USD)


async def test_a_cancelled_call_is_charged_in_full_and_holds_nothing_back() -> None:
    class Waits(ScriptedModel):
        async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
            scope.cancel()
            await anyio.sleep_forever()
            return await super().reply(request, on_text=on_text)

    meter = Budget(Caps(calls=2))

    with anyio.CancelScope() as scope:
        await MeteredModel(Waits([], PRICED), meter).reply(ASKED)

    assert meter.spent.calls == 1
    assert meter.spent.cost_usd == pytest.approx(MOST_USD)
    assert meter.remaining.calls == 1


async def test_what_an_inner_meter_stops_is_not_charged_outside() -> None:
    outer = Budget()
    inner = MeteredModel(ScriptedModel([], PRICED), Budget(Caps(calls=0)))

    with pytest.raises(BudgetExceededError):
        await MeteredModel(inner, outer).reply(ASKED)

    assert outer.spent == Usage()


async def test_models_that_share_a_meter_share_its_caps() -> None:
    meter = Budget(Caps(calls=2))
    one = MeteredModel(ScriptedModel([says("a"), says("b")]), meter)
    other = MeteredModel(ScriptedModel([says("c")]), meter)
    await one.reply(ASKED)
    await other.reply(ASKED)

    with pytest.raises(BudgetExceededError):
        await one.reply(ASKED)


async def test_the_text_arrives_while_it_is_metered() -> None:
    heard: list[str] = []

    await MeteredModel(ScriptedModel([says("hello")]), Budget()).reply(ASKED, on_text=heard.append)

    assert heard == ["hello"]


def flaky(place: int) -> Usage | Exception:
    match place % 5:
        case 0:
            return ModelUnavailableError("500")
        case 1:
            return ModelUnavailableError("429", retry_after_s=0.0)
        case 2:
            return used(estimate_input_tokens(ASKED), 100)
        case _:
            return used(90, 40)


async def test_a_cent_is_not_passed_by_twenty_calls_at_once_with_retries() -> None:
    meter = Budget(Caps(usd=0.01))
    inner = BusyModel(flaky)
    model = RetryingModel(MeteredModel(inner, meter), AT_ONCE)

    refused = await ask_at_once(model, 20)

    assert refused > 0
    assert len(inner.cost_usd) > 3
    assert math.fsum(inner.cost_usd) <= (meter.spent.cost_usd or 0.0) <= 0.01
    assert meter.spent.calls == inner.started


async def test_each_attempt_is_a_call() -> None:
    errors = [ModelUnavailableError("429", retry_after_s=0.0)] * 2
    meter = Budget()
    inner = ScriptedModel([*errors, says("at last", usage=used(10, 10))], PRICED)

    await RetryingModel(MeteredModel(inner, meter), AT_ONCE).reply(ASKED)

    assert meter.spent.calls == 3


async def test_a_budget_that_is_used_up_is_not_retried() -> None:
    inner = ScriptedModel([ModelUnavailableError("429", retry_after_s=0.0)], PRICED)
    model = RetryingModel(MeteredModel(inner, Budget(Caps(calls=1))), AT_ONCE)

    with pytest.raises(BudgetExceededError):
        await model.reply(ASKED)

    assert len(inner.asked) == 1


outcomes = st.one_of(
    st.builds(
        used, st.integers(1, estimate_input_tokens(ASKED)), st.integers(1, ASKED.max_output_tokens)
    ),
    st.just(ModelUnavailableError("silence")),
    st.just(ModelUnavailableError("later", retry_after_s=0.0)),
    st.just(ModelRefusedError("no")),
)
prices = st.floats(min_value=0.0, max_value=1000.0, allow_nan=False)


@given(
    plan=st.lists(outcomes, min_size=1, max_size=40),
    price=st.builds(Price, input_usd=prices, output_usd=prices),
    caps=st.builds(
        Caps,
        usd=st.none() | st.floats(min_value=0.0, max_value=0.5),
        tokens=st.none() | st.integers(0, 5000),
        calls=st.none() | st.integers(0, 30),
    ),
    retried=st.booleans(),
)
def test_no_cap_is_passed_whatever_happens(
    plan: list[Usage | Exception], price: Price, caps: Caps, *, retried: bool
) -> None:
    meter = Budget(caps)
    inner = BusyModel(lambda place: plan[place % len(plan)], replace(INFO, price=price))
    metered = MeteredModel(inner, meter)

    run_apart(ask_at_once, RetryingModel(metered, AT_ONCE) if retried else metered, 20)

    spent = meter.spent
    assert caps.usd is None or (spent.cost_usd or 0.0) <= caps.usd
    assert caps.tokens is None or spent.input_tokens + spent.output_tokens <= caps.tokens
    assert caps.calls is None or spent.calls <= caps.calls
    assert spent.calls == inner.started
    real = math.fsum(inner.cost_usd)
    assert real <= (spent.cost_usd or 0.0) or real == pytest.approx(spent.cost_usd)
    left = meter.remaining.calls
    assert left is None or left == (caps.calls or 0) - spent.calls


@given(cents=st.integers(1, 200))
def test_money_does_not_drift(cents: int) -> None:
    meter = Budget(Caps(usd=cents / 100))
    info = replace(INFO, price=Price(input_usd=0.0, output_usd=100.0))
    one_cent = replace(ASKED, max_output_tokens=100)

    for _ in range(cents):
        held = meter.reserve("busy", info, one_cent)
        meter.settle(held, replace(used(0, 100), cost_usd=0.01))

    assert meter.spent.cost_usd == cents / 100
    with pytest.raises(BudgetExceededError):
        meter.reserve("busy", info, one_cent)


@pytest.mark.parametrize("usd", [-0.01, math.inf, math.nan])
def test_a_cap_that_is_no_amount_is_refused(usd: float) -> None:
    with pytest.raises(UsageError, match="not an amount"):
        Budget(Caps(usd=usd))


@given(text=st.text(max_size=200))
def test_the_guess_counts_everything_a_model_reads(text: str) -> None:
    call = ToolCall(id="1", name="run", arguments={"code": text}, written="")
    tool = ToolSpec(name="run", description=text, parameters={"about": text})
    request = Request(
        messages=(Message(role="assistant", text=text, tool_calls=(call,)),),
        tools=(tool,),
        prefill=text,
        json_schema={"const": text},
    )

    assert estimate_input_tokens(request) >= 6 * len(text) / 3


def test_the_guess_is_higher_than_what_tokenizers_make_of_other_scripts() -> None:
    chinese = Request(messages=(Message(role="user", text="汉" * 900),))

    assert estimate_input_tokens(chinese) >= 900


OPEN = replace(ASKED, max_output_tokens=None)
"""Leaves the length to others."""


async def test_where_no_length_is_asked_for_the_usual_one_is_set_aside_and_sent() -> None:
    inner = ScriptedModel([says("yes")], PRICED)
    meter = Budget(Caps(usd=100.0, tokens=10**6))

    held = meter.reserve("busy", PRICED, OPEN)
    await MeteredModel(inner, meter).reply(OPEN)

    assert held.output_tokens == PRICED.output_limit(OPEN) == 8_192
    assert inner.asked[0].max_output_tokens == 8_192


@pytest.mark.parametrize(
    ("caps", "most"),
    [
        (Caps(usd=0.03), 0.03 / 10.0 * 10**6),
        (Caps(tokens=3000), 3000 - estimate_input_tokens(ASKED)),
        (Caps(usd=0.03, tokens=2500), 2500 - estimate_input_tokens(ASKED)),
    ],
)
async def test_a_small_budget_makes_a_shorter_reply_rather_than_none(
    caps: Caps, most: float
) -> None:
    inner = ScriptedModel([says("yes", usage=used(10, 10))], PRICED)
    meter = Budget(caps)

    await MeteredModel(inner, meter).reply(OPEN)

    length = inner.asked[0].max_output_tokens
    assert length is not None
    assert 0.9 * most < length <= most


async def test_a_reply_that_could_only_break_off_is_not_asked_for() -> None:
    inner = ScriptedModel([says("never")], PRICED)

    with pytest.raises(BudgetExceededError, match="could cost"):
        await MeteredModel(inner, Budget(Caps(usd=0.01))).reply(OPEN)

    assert inner.asked == []


async def test_a_length_that_was_asked_for_is_not_shortened() -> None:
    asked = replace(ASKED, max_output_tokens=5000)

    with pytest.raises(BudgetExceededError):
        await MeteredModel(ScriptedModel([], PRICED), Budget(Caps(usd=0.03))).reply(asked)


@given(
    usd=st.floats(min_value=0.0, max_value=0.5),
    price=st.builds(Price, input_usd=prices, output_usd=prices),
    text=st.text(max_size=50),
)
def test_a_shortened_reply_never_costs_more_than_is_left(
    usd: float, price: Price, text: str
) -> None:
    request = Request(messages=(Message(role="user", text=text),))
    meter = Budget(Caps(usd=usd))

    try:
        held = meter.reserve("busy", replace(INFO, price=price), request)
    except BudgetExceededError:
        return

    assert (held.usage.cost_usd or 0.0) <= usd
    assert held.output_tokens >= 1024


async def test_a_cent_is_not_passed_where_nobody_says_how_long_replies_may_be() -> None:
    info = replace(PRICED, price=Price(input_usd=0.1, output_usd=0.1))
    meter = Budget(Caps(usd=0.01))
    inner = BusyModel(flaky, info)
    model = RetryingModel(MeteredModel(inner, meter), AT_ONCE)

    async def ask() -> None:
        with suppress(BudgetExceededError, ModelUnavailableError):
            await model.reply(OPEN)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(ask)

    assert len(inner.cost_usd) > 3
    assert math.fsum(inner.cost_usd) <= (meter.spent.cost_usd or 0.0) <= 0.01


def test_what_a_provider_wants_to_see_again_is_read_too() -> None:
    message = Message(role="assistant", text="a", provider_state="x" * 3000)

    assert estimate_input_tokens(Request(messages=(message,))) > 1000


async def test_the_cache_of_a_provider_saves_money_and_costs_some() -> None:
    price = Price(input_usd=3.0, output_usd=15.0, cached_input_usd=0.3, cache_write_usd=3.75)
    usage = Usage(
        input_tokens=10_000, cached_input_tokens=6_000, cache_write_tokens=3_000, output_tokens=100
    )
    model = ScriptedModel([says("", usage=usage)], replace(INFO, price=price))

    used = (await MeteredModel(model, Budget()).reply(ASKED)).usage

    assert used.cost_usd == pytest.approx(
        (1_000 * 3.0 + 6_000 * 0.3 + 3_000 * 3.75 + 100 * 15) / 1e6
    )
    assert used.saved_usd == pytest.approx((6_000 * 2.7 - 3_000 * 0.75) / 1e6)


def test_a_call_reserves_what_writing_all_of_its_input_to_the_cache_costs() -> None:
    price = Price(input_usd=3.0, output_usd=15.0, cache_write_usd=3.75)

    held = Budget().reserve("m", replace(INFO, price=price), ASKED)

    assert held.usage.cost_usd == pytest.approx(
        (held.input_tokens * 3.75 + held.output_tokens * 15) / 1e6
    )


def test_one_reply_reserves_at_most_half_of_a_cap_that_is_large() -> None:
    meter = Budget(Caps(tokens=200_000))
    info = replace(INFO, context_tokens=1_000_000, max_output_tokens=128_000)
    open_ended = replace(ASKED, max_output_tokens=None)

    first, second = (meter.reserve("m", info, open_ended).output_tokens for _ in range(2))

    assert 90_000 < first <= 100_000
    assert second >= 16_384


def test_input_and_reply_fit_into_the_context_together() -> None:
    info = replace(INFO, context_tokens=8_000, max_output_tokens=8_000)
    long = replace(
        ASKED, messages=(Message(role="user", text="word " * 3_000),), max_output_tokens=8_000
    )

    held = Budget().reserve("m", info, long)

    assert held.input_tokens + held.output_tokens <= 8_000
