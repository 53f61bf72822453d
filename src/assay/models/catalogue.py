"""What is known of providers and models: where they are, what they can do, what they cost.

The facts stand in `catalogue.toml`; prices, and the context sizes of models that have one, come
from genai-prices, which is kept up by others.
"""

import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from assay.contracts.errors import UsageError
from assay.contracts.messages import ModelFacts, Price

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

Wire = Literal["openai", "anthropic", "gemini"]
MaxTokensName = Literal["max_tokens", "max_completion_tokens"]

_FREE_MODEL: Final = ":free"
"""How OpenRouter names models, and others after it, that cost nothing."""
FREE = Price(input_usd=0.0, output_usd=0.0)
NO_OVERRIDES: Mapping[str, Price] = MappingProxyType({})


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Provider(_Strict):
    """Somebody who answers for models."""

    name: str
    title: str
    wire: Wire
    """The format it speaks; also the name of the extra that is needed to speak it."""
    base_url: str
    key_variable: str = ""
    """Where people keep the key; empty when it needs none."""
    default_model: str = ""
    """Empty: whichever its server has loaded."""
    local: bool = False
    """Runs on this machine, and so costs nothing."""
    prices: str = ""
    """Its name in genai-prices; empty when nothing is known there."""
    supports_prefill: bool | None = None
    supports_json_schema: bool | None = None
    """What the engine makes of any model; unset: as the model is."""
    max_tokens_name: MaxTokensName = "max_tokens"
    supports_seed: bool = False
    """Whether it knows the word; some refuse a request for a word they do not know."""
    streams_usage: bool = True
    """Whether it can be asked to count tokens at the end of a stream."""
    prefill_parameters: Mapping[str, Any] = Field(default_factory=dict)
    """What else to send when the answer has to go on from a beginning."""
    tool_call_parameters: Mapping[str, Any] = Field(default_factory=dict)
    """What else each tool call of the past has to carry."""

    @property
    def extra(self) -> str:
        return self.wire


class Quirks(_Strict):
    """What a model wants to be asked differently than others."""

    takes_temperature: bool = True
    takes_stop: bool = True


class _Family(Quirks):
    prefixes: tuple[str, ...] = ()
    context_tokens: int
    max_output_tokens: int
    tool_calls: bool = True
    supports_prefill: bool = False
    supports_json_schema: bool = False
    sees_pictures: bool = False


class _Unknown(_Strict):
    hosted: _Family
    local: _Family


class _Catalogue(_Strict):
    providers: Mapping[str, Provider]
    models: tuple[_Family, ...]
    unknown: _Unknown


@cache
def _catalogue() -> _Catalogue:
    table = tomllib.loads(files("assay.models").joinpath("catalogue.toml").read_text("utf-8"))
    for name, fields in table["providers"].items():
        fields["name"] = name
    return _Catalogue.model_validate(table)


def providers() -> tuple[Provider, ...]:
    """Return all that are known, in the order in which they are tried."""
    return tuple(_catalogue().providers.values())


def provider(name: str) -> Provider:
    """Return one by its name.

    Raises:
        UsageError: If there is none of that name.
    """
    known = _catalogue().providers
    if name not in known:
        raise UsageError(f"there is no provider {name!r}", hint=f"known are {', '.join(known)}")
    return known[name]


def quirks_for(model: str) -> Quirks:
    """Tell how a model wants to be asked."""
    family = _family_of(model)
    return Quirks(
        takes_temperature=family is None or family.takes_temperature,
        takes_stop=family is None or family.takes_stop,
    )


def facts_for(
    provider: Provider, model: str, *, price_overrides: Mapping[str, Price] = NO_OVERRIDES
) -> ModelFacts:
    """Gather what is known of a model at a provider.

    `price_overrides` has prices by `provider:model` or by `model`, and wins over what is known.
    """
    unknown = _catalogue().unknown.local if provider.local else _catalogue().unknown.hosted
    family = _family_of(model) or unknown
    listed = _listed(provider.prices, model) if provider.prices else None
    price, flat_until = _price_of(provider, model, price_overrides, listed)
    # Whoever keeps the prices keeps the sizes too, model by model; a family's is for the others.
    context_tokens = (listed and listed.context_window) or family.context_tokens
    prefill, schema = provider.supports_prefill, provider.supports_json_schema
    return ModelFacts(
        # A longer request costs more per token at some providers, and a price here is one number.
        context_tokens=min(context_tokens, flat_until or context_tokens),
        max_output_tokens=min(family.max_output_tokens, context_tokens),
        tool_calls=family.tool_calls,
        price=price,
        supports_prefill=family.supports_prefill if prefill is None else prefill,
        supports_json_schema=family.supports_json_schema if schema is None else schema,
        # Who does not let the temperature be chosen does not let the draw be chosen either.
        supports_seed=provider.supports_seed and family.takes_temperature,
        local=provider.local,
        sees_pictures=family.sees_pictures,
    )


def _family_of(model: str) -> _Family | None:
    name = _comparable(model)
    fitting = [
        (len(prefix), family)
        for family in _catalogue().models
        for prefix in family.prefixes
        if name.startswith(_comparable(prefix))
    ]
    return max(fitting, key=lambda found: found[0])[1] if fitting else None


def _comparable(model: str) -> str:
    return model.lower().rpartition("/")[2].replace(".", "-")


def _price_of(
    provider: Provider, model: str, overrides: Mapping[str, Price], listed: "ModelInfo | None"
) -> tuple[Price | None, int | None]:
    """Return the price, and up to how many tokens it holds if it does not always."""
    for name in (f"{provider.name}:{model}", model):
        if name in overrides:
            return overrides[name], None
    if provider.local or model.endswith(_FREE_MODEL):
        return FREE, None
    if listed is None:
        return None, None
    found = listed.get_prices(datetime.now(UTC))
    return _to_price(found), _flat_until(found)


def _listed(provider_id: str, model: str) -> "ModelInfo | None":
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return None
    try:
        _, info = get_snapshot().find_provider_model(model, None, provider_id, None)
    except LookupError:
        return None
    return info


def _to_price(listed: "ModelPrice") -> Price | None:
    read, written, output = (
        _base(listed.input_mtok),
        _base(listed.cache_write_mtok),
        _base(listed.output_mtok),
    )
    if read is None or output is None:
        return None
    # What a provider writes to its cache, it charges for as input and more. Which tokens those
    # are is not ours to choose, so all are taken to be: a cap must not be passed.
    dearest = max(read, written or 0.0)
    return Price(
        input_usd=dearest, output_usd=output, cached_input_usd=_base(listed.cache_read_mtok)
    )


def _flat_until(listed: "ModelPrice") -> int | None:
    amounts = (listed.input_mtok, listed.output_mtok, listed.cache_read_mtok)
    starts = [tier.start for amount in amounts for tier in getattr(amount, "tiers", ())]
    return min(starts, default=None)


def _base(amount: Any) -> float | None:  # noqa: ANN401 - a number, or one with tiers
    if amount is None:
        return None
    return float(getattr(amount, "base", amount))
