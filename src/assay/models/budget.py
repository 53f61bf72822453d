"""Budget: caps on cost, tokens and calls; reserves the maximum of a call before it is sent.

Any number of models and concurrent calls can share one `Budget`. Reserving and settling do not
await, so no other call comes between the check of a cap and the reservation.
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
from assay.contracts.messages import ModelInfo, Price, Reply, Request, Usage
from assay.contracts.ports import Model, OnText, ignore_text
from assay.models.model_bases import WrappedModel

_BYTES_PER_TOKEN: Final = 3
"""UTF-8 bytes. Text and code have about four per token, so the estimate is rather too high."""
_LEAST_OUTPUT_TOKENS: Final = 1024
"""A reply with a lower limit would break off, so the call is not made."""
_USUAL_OUTPUT_TOKENS: Final = 16_384
"""Enough for reasoning and a reply."""
_TOKENS_PER_PICTURE: Final = 2_000
"""More than a figure of the usual size needs at any provider."""
_TOKENS_PER_PART: Final = 16
"""The tokens around a message, a tool or a call, in the widest known format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """The caps of a budget. None means no cap."""

    usd: float | None = None
    tokens: int | None = None
    """Input and output together."""
    calls: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The maximum usage of one call."""

    input_tokens: int
    output_tokens: int
    price: Price | None

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def usage(self) -> Usage:
        """Return the usage of a call that takes the whole reservation."""
        used = Usage(
            input_tokens=self.input_tokens,
            cache_write_tokens=self.input_tokens if _writing_costs_more(self.price) else 0,
            output_tokens=self.output_tokens,
            calls=1,
        )
        return replace(used, cost_usd=None if self.price is None else _cost_usd(used, self.price))


class Budget:
    """The used amounts, the reservations of running calls, and the remaining amounts."""

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
        """Return the usage of completed calls; the cost is None once a price was unknown."""
        usd = self._spent_usd
        return replace(self._spent, cost_usd=None if usd is None else float(usd))

    @property
    def remaining(self) -> Caps:
        """Return the limits of the next call: the caps less used and reserved amounts."""
        return Caps(
            usd=None if (usd := self._usd_left()) is None else max(float(usd), 0.0),
            tokens=_at_least_nothing(self._tokens_left()),
            calls=_at_least_nothing(self._calls_left()),
        )

    def reserve(self, name: str, info: ModelInfo, request: Request) -> Reservation:
        """Reserve the maximum that this request can use.

        Raises:
            BudgetExceededError: If a cap does not allow it, or cannot be enforced for this model.
        """
        input_tokens = estimate_input_tokens(request)
        reservation = Reservation(
            input_tokens=input_tokens,
            output_tokens=self._output_tokens(request, info, input_tokens),
            price=info.price,
        )
        self._check_calls()
        self._check_tokens(reservation)
        self._check_money(name, _exact(reservation.usage.cost_usd))
        self._reserved_calls += 1
        self._reserved_tokens += reservation.tokens
        self._reserved_usd += _exact(reservation.usage.cost_usd) or 0
        return reservation

    def settle(self, reservation: Reservation, used: Usage) -> None:
        """Replace a reservation by the actual usage."""
        self._reserved_calls -= 1
        self._reserved_tokens -= reservation.tokens
        self._reserved_usd -= _exact(reservation.usage.cost_usd) or 0
        self._spent += used
        usd = _exact(used.cost_usd)
        if self._spent_usd is not None:
            self._spent_usd = None if usd is None else self._spent_usd + usd

    def _output_tokens(self, request: Request, info: ModelInfo, input_tokens: int) -> int:
        """Return the limit of the reply; without a requested one, the remaining budget counts."""
        # A server rejects a request whose input and reply exceed the context together.
        room = max(info.context_tokens - input_tokens, _LEAST_OUTPUT_TOKENS)
        limit = min(info.output_limit(request), room)
        if request.max_output_tokens is not None:
            return limit
        affordable = [limit]
        if (tokens := self._tokens_left()) is not None:
            affordable.append(_share(tokens - input_tokens))
        if (usd := self._usd_left()) is not None and info.price and info.price.output_usd:
            read = Fraction(str(info.price.input_usd)) * input_tokens
            left = (usd * 10**6 - read) / Fraction(str(info.price.output_usd))
            affordable.append(_share(math.floor(left) - 1))  # costs are computed with floats
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
                hint=f'give a price in the settings, under [models."{name}".price], '
                "or cap tokens or calls instead",
            )
        if wanted > left:
            raise BudgetExceededError(
                f"the next call could cost ${float(wanted):.6f}, and "
                f"${max(float(left), 0.0):.6f} of ${self.caps.usd:g} is left",
                hint="raise the cap in dollars, or choose a cheaper model",
            )


class MeteredModel(WrappedModel):
    """A model whose calls all use a budget.

    Put a retrying model around this one, not inside: each attempt is then a separate call. The
    request is sent with the reserved reply length, or unchanged with `as_asked`, for replays: they
    find a request by its content.
    """

    def __init__(self, model: Model, meter: Budget, *, as_asked: bool = False) -> None:
        super().__init__(model)
        self._meter = meter
        self._as_asked = as_asked

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        reservation = self._meter.reserve(self.name, self.info, request)
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
            # Cancelled, or an undocumented error: the provider may have answered.
            self._meter.settle(reservation, used)
        return replace(reply, usage=used)


def _share(left: int) -> int:
    """Return the part of the remaining output tokens that one reply may reserve.

    A model that may write much must not take all of it from the calls beside it.
    """
    return max(left // 2, min(left, _USUAL_OUTPUT_TOKENS))


def estimate_input_tokens(request: Request) -> int:
    """Estimate how many tokens a model will read, rather too high than too low."""
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
    """Return the usage of a reply. The estimate is used where the provider reports nothing."""
    told = reply.usage
    used = replace(
        told,
        calls=max(told.calls, 1),
        input_tokens=told.input_tokens or reservation.input_tokens,
        output_tokens=told.output_tokens or _written_tokens(reply),
    )
    # A cost of zero comes from APIs that do not compute costs.
    if not told.cost_usd and reservation.price is not None:
        used = replace(used, cost_usd=_cost_usd(used, reservation.price))
    if reservation.price is not None:
        used = replace(used, saved_usd=_saved_usd(used, reservation.price))
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
    """Return whether a failed call cannot have read or written anything, and so costs nothing.

    A provider that answered with an error, or with a retry time, did not start. A provider that
    fell silent may have.
    """
    if not isinstance(error, ModelUnavailableError):
        return True
    return error.not_charged or error.retry_after_s is not None


def _cost_usd(used: Usage, price: Price) -> float:
    cached = min(used.cached_input_tokens, used.input_tokens)
    written = min(used.cache_write_tokens, used.input_tokens - cached)
    cached_usd = price.input_usd if price.cached_input_usd is None else price.cached_input_usd
    write_usd = price.input_usd if price.cache_write_usd is None else price.cache_write_usd
    millionths = (
        (used.input_tokens - cached - written) * price.input_usd
        + cached * cached_usd
        + written * write_usd
        + used.output_tokens * price.output_usd
    )
    return millionths / 10**6


def _saved_usd(used: Usage, price: Price) -> float:
    """Return how much more the same tokens would have cost without a cache."""
    uncached = replace(used, cached_input_tokens=0, cache_write_tokens=0)
    return _cost_usd(uncached, price) - _cost_usd(used, price)


def _writing_costs_more(price: Price | None) -> bool:
    return price is not None and (price.cache_write_usd or 0.0) > price.input_usd


def _exact(usd: float | None) -> Fraction | None:
    """Round an amount of money: sums of floats drift, and a cap must not."""
    return None if usd is None else Fraction(str(usd))


def _at_least_nothing(left: int | None) -> int | None:
    return None if left is None else max(left, 0)
