"""Keeps caps on money, tokens and calls: what a call could cost is set aside before it is sent.

Any number of models and concurrent calls may share one `Budget`. Reserving and settling do not
await, so no other call comes between looking at a cap and taking from it.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from assay.contracts.errors import (
    BudgetExceededError,
    ModelRefusedError,
    ModelUnavailableError,
    UsageError,
)
from assay.contracts.messages import ModelFacts, Price, Reply, Request, Usage
from assay.contracts.ports import Model, OnText, ignore_text

_BYTES_PER_TOKEN: Final = 3
"""Of UTF-8. Text and code have about four a token, so a guess is rather too high."""
_LEAST_OUTPUT_TOKENS: Final = 1024
"""A reply that may not be even this long is rather not asked for: it would break off."""
_TOKENS_PER_PICTURE: Final = 2_000
"""More than a figure of the usual size takes at any provider."""
_TOKENS_PER_PART: Final = 16
"""What the marks around a message, a tool or a call take, in the widest format known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """How much may be used in all. None is no cap."""

    usd: float | None = None
    tokens: int | None = None
    """Read and written, together."""
    calls: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The most that one call is expected to take."""

    input_tokens: int
    output_tokens: int
    price: Price | None

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def usage(self) -> Usage:
        """All of it, as if the call had taken it."""
        used = Usage(input_tokens=self.input_tokens, output_tokens=self.output_tokens, calls=1)
        return replace(used, cost_usd=None if self.price is None else _cost_usd(used, self.price))


class Budget:
    """What was used, what is set aside for calls under way, and what is left."""

    def __init__(self, caps: Caps | None = None) -> None:
        self.caps: Final = caps or Caps()
        if self.caps.usd is not None and not 0 <= self.caps.usd < math.inf:
            raise UsageError(f"a cap of {self.caps.usd} dollars is not an amount of money")
        self._spent = Usage()
        self._spent_usd: Fraction | None = Fraction()
        self._reserved_tokens = 0
        self._reserved_calls = 0
        self._reserved_usd = Fraction()

    @property
    def spent(self) -> Usage:
        """What the calls that ended took; the cost is None once a price was not known."""
        usd = self._spent_usd
        return replace(self._spent, cost_usd=None if usd is None else float(usd))

    @property
    def remaining(self) -> Caps:
        """What the next call may take: less what was spent, less what calls under way may take."""
        return Caps(
            usd=None if (usd := self._usd_left()) is None else max(float(usd), 0.0),
            tokens=_at_least_nothing(self._tokens_left()),
            calls=_at_least_nothing(self._calls_left()),
        )

    def reserve(self, name: str, facts: ModelFacts, request: Request) -> Reservation:
        """Set aside what this request could take at most.

        Raises:
            BudgetExceededError: If a cap does not allow it, or cannot be kept for this model.
        """
        input_tokens = estimate_input_tokens(request)
        reservation = Reservation(
            input_tokens=input_tokens,
            output_tokens=self._output_tokens(request, facts, input_tokens),
            price=facts.price,
        )
        self._check_calls()
        self._check_tokens(reservation)
        self._check_money(name, _exact(reservation.usage.cost_usd))
        self._reserved_calls += 1
        self._reserved_tokens += reservation.tokens
        self._reserved_usd += _exact(reservation.usage.cost_usd) or 0
        return reservation

    def settle(self, reservation: Reservation, used: Usage) -> None:
        """Give back what was set aside, and write down what was used instead."""
        self._reserved_calls -= 1
        self._reserved_tokens -= reservation.tokens
        self._reserved_usd -= _exact(reservation.usage.cost_usd) or 0
        self._spent += used
        usd = _exact(used.cost_usd)
        if self._spent_usd is not None:
            self._spent_usd = None if usd is None else self._spent_usd + usd

    def _output_tokens(self, request: Request, facts: ModelFacts, input_tokens: int) -> int:
        """Return how long the reply may be. Where nobody said, what is left decides with."""
        limit = facts.output_limit(request)
        if request.max_output_tokens is not None:
            return limit
        affordable = [limit]
        if (tokens := self._tokens_left()) is not None:
            affordable.append(tokens - input_tokens)
        if (usd := self._usd_left()) is not None and facts.price and facts.price.output_usd:
            read = Fraction(str(facts.price.input_usd)) * input_tokens
            left = (usd * 10**6 - read) / Fraction(str(facts.price.output_usd))
            affordable.append(math.floor(left) - 1)  # what it costs is reckoned with floats
        return max(min(affordable), min(limit, _LEAST_OUTPUT_TOKENS))

    def _calls_left(self) -> int | None:
        if self.caps.calls is None:
            return None
        return self.caps.calls - self._spent.calls - self._reserved_calls

    def _tokens_left(self) -> int | None:
        if self.caps.tokens is None:
            return None
        spent = self._spent.input_tokens + self._spent.output_tokens
        return self.caps.tokens - spent - self._reserved_tokens

    def _usd_left(self) -> Fraction | None:
        cap = _exact(self.caps.usd)
        return None if cap is None else cap - (self._spent_usd or 0) - self._reserved_usd

    def _check_calls(self) -> None:
        left = self._calls_left()
        if left is not None and left < 1:
            raise BudgetExceededError(
                f"all {self.caps.calls} calls to a model are used up", hint="raise the cap on calls"
            )

    def _check_tokens(self, wanted: Reservation) -> None:
        left = self._tokens_left()
        if left is not None and wanted.tokens > left:
            raise BudgetExceededError(
                f"the next call could take {wanted.tokens} tokens, and {max(left, 0)} "
                f"of {self.caps.tokens} are left",
                hint="raise the cap on tokens, or ask for shorter replies",
            )

    def _check_money(self, name: str, wanted: Fraction | None) -> None:
        left = self._usd_left()
        if left is None:
            return
        if wanted is None:
            raise BudgetExceededError(
                f"no price is known for {name!r}, so a cap in dollars cannot be kept",
                hint=f'give a price in the settings, under [models.prices."{name}"], '
                "or cap tokens or calls instead",
            )
        if wanted > left:
            raise BudgetExceededError(
                f"the next call could cost ${float(wanted):.6f}, and "
                f"${max(float(left), 0.0):.6f} of ${self.caps.usd:g} is left",
                hint="raise the cap in dollars, or choose a cheaper model",
            )


class MeteredModel:
    """A model whose every call goes through a meter.

    Put a retrying model around this one, not inside: each attempt is then a call of its own. The
    request goes on with the length that was set aside for its reply, or `as_asked`, which is for
    replays: they know a request by what it says.
    """

    def __init__(self, model: Model, meter: Budget, *, as_asked: bool = False) -> None:
        self._model = model
        self._meter = meter
        self._as_asked = as_asked

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def facts(self) -> ModelFacts:
        return self._model.facts

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        reservation = self._meter.reserve(self.name, self.facts, request)
        used = reservation.usage
        begun = False

        def hear(text: str) -> None:
            nonlocal begun
            begun = True
            on_text(text)

        try:
            if not self._as_asked:
                request = replace(request, max_output_tokens=reservation.output_tokens)
            reply = await self._model.reply(request, on_text=hear)
            used = _settled(reply, reservation)
        except (BudgetExceededError, ModelRefusedError, ModelUnavailableError) as error:
            if not begun and _was_turned_away(error):
                used = Usage(calls=0 if isinstance(error, BudgetExceededError) else 1)
            raise
        finally:
            # Cancelled, or an error nobody promised: it may have been answered all the same.
            self._meter.settle(reservation, used)
        return replace(reply, usage=used)


def estimate_input_tokens(request: Request) -> int:
    """Guess how much a model will read, rather too high than too low."""
    parts = tuple(_parts(request))
    written = sum(len(part.encode(errors="surrogatepass")) for part in parts)
    pictures = sum(len(message.pictures) for message in request.messages)
    return _tokens_of(written) + _TOKENS_PER_PART * len(parts) + _TOKENS_PER_PICTURE * pictures


def _parts(request: Request) -> Iterator[str]:
    for message in request.messages:
        yield message.text
        if message.provider_state:
            yield message.provider_state
        for call in message.tool_calls:
            yield call.name + (call.written or json.dumps(call.arguments))
    for tool in request.tools:
        yield tool.name + tool.description + json.dumps(dict(tool.parameters))
    yield request.prefill
    if request.json_schema is not None:
        yield json.dumps(dict(request.json_schema))


def _tokens_of(size_bytes: int) -> int:
    return -(-size_bytes // _BYTES_PER_TOKEN)


def _settled(reply: Reply, reservation: Reservation) -> Usage:
    """What a reply took. Where the provider did not say, our guess stands."""
    told = reply.usage
    used = replace(
        told,
        calls=max(told.calls, 1),
        input_tokens=told.input_tokens or reservation.input_tokens,
        output_tokens=told.output_tokens or _written_tokens(reply),
    )
    # A cost of nothing is what a wire format says that does not reckon costs.
    if not told.cost_usd and reservation.price is not None:
        used = replace(used, cost_usd=_cost_usd(used, reservation.price))
    elif not told.cost_usd:
        used = replace(used, cost_usd=None)
    return used


def _written_tokens(reply: Reply) -> int:
    calls = (call.name + call.written for call in reply.message.tool_calls)
    written = reply.message.text + "".join(calls)
    return _tokens_of(len(written.encode(errors="surrogatepass")))


def _was_turned_away(
    error: BudgetExceededError | ModelRefusedError | ModelUnavailableError,
) -> bool:
    """Whether nothing can have been read or written for a call that failed, and so nothing charged.

    A provider that answered with an error, or names a time to come back, did not begin. One that
    fell silent may have.
    """
    if not isinstance(error, ModelUnavailableError):
        return True
    return error.turned_away or error.retry_after_s is not None


def _cost_usd(used: Usage, price: Price) -> float:
    cached = min(used.cached_input_tokens, used.input_tokens)
    cached_usd = price.input_usd if price.cached_input_usd is None else price.cached_input_usd
    millionths = (
        (used.input_tokens - cached) * price.input_usd
        + cached * cached_usd
        + used.output_tokens * price.output_usd
    )
    return millionths / 10**6


def _exact(usd: float | None) -> Fraction | None:
    """Money as it is written down: sums of floats drift, and a cap must not."""
    return None if usd is None else Fraction(str(usd))


def _at_least_nothing(left: int | None) -> int | None:
    return None if left is None else max(left, 0)
