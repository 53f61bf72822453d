"""Catalogue of providers and models: addresses, capabilities and prices.

The data are in `catalogue.toml`; prices, and the context sizes of models that have one, come from
the package genai-prices, which other people maintain.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import EntryPoint
from importlib.resources import files
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from assay.contracts.errors import UsageError, require
from assay.contracts.extensions import declared_by, find_extensions, load_extension
from assay.contracts.messages import ModelInfo, Price
from assay.contracts.ports import Model
from assay.models.served import ServedModel
from assay.settings.load import KEY_VARIABLES, NamedModelSettings, key_variable_of

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo as ListedModel
    from genai_prices.types import ModelPrice

Wire = Literal["openai", "anthropic", "gemini"]
OpenProvider = Callable[..., AbstractAsyncContextManager[Model]]
"""Opens a model: `open(provider, model, *, info: ModelInfo, connection: Connection)`."""
_CLIENTS: Final[Mapping[Wire, str]] = {
    "openai": "assay.models.providers.openai_compatible:open_openai_compatible",
    "anthropic": "assay.models.providers.anthropic:open_anthropic",
    "gemini": "assay.models.providers.gemini:open_gemini",
}
GROUP: Final = "assay.providers"
"""The entry point group in which other distributions declare their providers."""
MaxTokensName = Literal["max_tokens", "max_completion_tokens"]

_FREE_MODEL: Final = ":free"
"""The suffix of free models at OpenRouter and similar providers."""
FREE = Price(input_usd=0.0, output_usd=0.0)
_SMALL_BELOW: Final = 10 * 10**9
"""Parameters. Models below this repair their code less well than they write it again."""
_CONTEXT_PER_UNKNOWN_REPLY: Final = 4
_PARAMETERS: Final = re.compile(
    r"(?<![a-z0-9.])(?:(\d+)x|e)?(\d+(?:\.\d+)?)(b|(?<=\d{3})m)(?![a-z0-9])"
)
"""Not the active parameters of a mixture of experts (`a35b`), and no context sizes (`1m`)."""

Value = TypeVar("Value")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Provider(_Strict):
    """A provider of models."""

    name: str
    title: str
    wire: Wire = "openai"
    """One of Assay's wire formats; also the name of the extra that it needs."""
    open: OpenProvider | None = None
    """A separate wire format of another distribution."""
    base_url: str
    key_variable: str = ""
    """The usual environment variable of the key; empty if the provider needs none."""
    default_model: str = ""
    """Empty: the model that its server has loaded."""
    local: bool = False
    """Runs on this machine, and so costs nothing."""
    prices: str = ""
    """Its name in genai-prices; empty if that has no prices."""
    supports_prefill: bool | None = None
    supports_json_schema: bool | None = None
    """What the engine supports for every model; None: depends on the model."""
    max_tokens_name: MaxTokensName = "max_tokens"
    supports_seed: bool = False
    """Whether it accepts a seed; some providers reject unknown parameters."""
    streams_usage: bool = True
    """Whether it can report token counts at the end of a stream."""
    prefill_parameters: Mapping[str, Any] = Field(default_factory=dict)
    """Additional parameters of a request whose answer continues a prefill."""
    tool_call_parameters: Mapping[str, Any] = Field(default_factory=dict)
    """Additional fields of each past tool call."""

    @property
    def extra(self) -> str:
        """The extra of Assay that it needs; empty if it has its own wire format."""
        return "" if self.open else self.wire

    def load(self) -> OpenProvider:
        """Import the client of its wire format, which can take a second.

        Raises:
            MissingExtraError: If the SDK is not installed.
        """
        if self.open is not None:
            return self.open
        with require(f"asking {self.title}", extra=self.extra):
            return resolve_name(_CLIENTS[self.wire])


class Quirks(_Strict):
    """Differences in how a model must be requested."""

    takes_temperature: bool = True
    takes_stop: bool = True
    reasoning: Literal["effort", "budget"] = "effort"
    """Whether the API takes an effort, or a number of tokens, for the reasoning of this model."""


class _Family(Quirks):
    prefixes: tuple[str, ...] = ()
    context_tokens: int
    max_output_tokens: int
    tool_calls: bool = True
    supports_prefill: bool = False
    supports_json_schema: bool = False
    sees_pictures: bool = False


class _Unknown(_Strict):
    small: _Family
    other: _Family


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
    """Return all known providers, in the order in which they are tried."""
    return tuple(_catalogue().providers.values())


def provider(name: str) -> Provider:
    """Return a provider by name.

    Raises:
        UsageError: If there is none of that name.
    """
    known = _catalogue().providers
    if name not in known:
        raise UsageError(f"there is no provider {name!r}", hint=f"known are {', '.join(known)}")
    return known[name]


def installed_providers() -> Mapping[str, EntryPoint]:
    """Return the providers that other distributions declare, by name.

    Raises:
        UsageError: If a name is declared twice, or belongs to a provider of Assay.
    """
    return find_extensions(GROUP, taken=_catalogue().providers)


def load_installed(entry: EntryPoint) -> Provider:
    """Import a provider of another distribution.

    Raises:
        UsageError: If it cannot be loaded; names the distribution.
    """
    found = load_extension(entry, Provider)
    variable = key_variable_of(entry.name)
    # The keys of Assay's own providers go nowhere else.
    if found.key_variable not in {"", variable} or found.key_variable in KEY_VARIABLES:
        raise UsageError(
            f"{declared_by(entry)}, which reads its key from {found.key_variable!r}",
            hint=f"only {variable!r} is allowed, and no key of Assay's own providers",
        )
    return found.model_copy(update={"name": entry.name})


def quirks_for(model: str) -> Quirks:
    """Return the request differences of a model."""
    family = _family_of(model)
    return Quirks(
        takes_temperature=family is None or family.takes_temperature,
        takes_stop=family is None or family.takes_stop,
        reasoning="effort" if family is None else family.reasoning,
    )


Source = Literal["settings", "server", "catalogue", "price list", "name", "default"]
"""Where a property of a model comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedModel:
    """The properties of a model, and where each one comes from."""

    info: ModelInfo
    sources: Mapping[str, Source]
    """By the name of the setting."""


def model_info(
    provider: Provider,
    model: str,
    *,
    own: NamedModelSettings | None = None,
    served: ServedModel | None = None,
) -> ModelInfo:
    """Return the properties of a model at a provider."""
    return describe_model(provider, model, own=own, served=served).info


def describe_model(
    provider: Provider,
    model: str,
    *,
    own: NamedModelSettings | None = None,
    served: ServedModel | None = None,
) -> DescribedModel:
    """Collect the properties of a model at a provider.

    The user's own settings win. Then come what the server reports, the price list, the catalogue,
    and the number of parameters in the name.
    """
    own, served = own or NamedModelSettings(), served or ServedModel(name=model)
    listed = _listed(provider.prices, model) if provider.prices else None
    price, price_source, flat_until = _price_of(provider, model, own, listed)
    known = _family_of(model) or _family_of(served.base_name)
    small, small_source = _first_known(
        ("settings", own.small),
        ("server", _is_small(served.parameters)),
        ("name", _is_small(parameters_in(model) or parameters_in(served.base_name))),
        ("catalogue" if known else "default", False),
    )
    unknown = _catalogue().unknown.small if small else _catalogue().unknown.other
    family, family_source = (known, "catalogue") if known else (unknown, "default")
    size, size_source = _first_known(
        ("settings", own.context_tokens),
        ("server", served.context_tokens),
        # Some providers charge more per token for longer requests, and a price here is one number.
        (
            "price list",
            _smallest(listed.context_window, flat_until)
            if listed and listed.context_window
            else None,
        ),
        (family_source, _smallest(family.context_tokens, flat_until)),
    )
    # A server without a catalogue entry has no other limit than its context.
    usual = family.max_output_tokens if known else size // _CONTEXT_PER_UNKNOWN_REPLY
    most, most_source = _first_known(
        ("settings", own.max_output_tokens),
        ("server", served.max_output_tokens),
        (family_source, usual),
    )
    calls, calls_source = _first_known(
        ("settings", own.tool_calls),
        # Some models of servers that accept tools write their calls as plain text.
        ("catalogue", False if known and not known.tool_calls else None),
        ("server", served.tool_calls),
        (family_source, family.tool_calls),
    )
    sees, sees_source = _first_known(
        ("settings", own.vision),
        ("server", served.sees_pictures),
        (family_source, family.sees_pictures),
    )
    schema = provider.supports_json_schema
    info = ModelInfo(
        context_tokens=size,
        max_output_tokens=min(most, size),
        tool_calls=calls,
        price=price,
        supports_prefill=_accepts_prefill(provider, family, own),
        supports_json_schema=family.supports_json_schema if schema is None else schema,
        # Models without a choice of temperature do not accept a seed either.
        supports_seed=provider.supports_seed and family.takes_temperature,
        local=provider.local,
        small=small,
        sees_pictures=sees,
        reasoning_effort=own.reasoning_effort,
    )
    sources: dict[str, Source] = {
        "context_tokens": size_source,
        "max_output_tokens": most_source,
        "tool_calls": calls_source,
        "vision": sees_source,
        "reasoning_effort": "settings" if own.reasoning_effort else "default",
        "small": small_source,
        "price": price_source,
    }
    return DescribedModel(info=info, sources=sources)


def _accepts_prefill(provider: Provider, family: _Family, own: NamedModelSettings) -> bool:
    if provider.wire == "anthropic" and own.reasoning_effort not in {None, "none"}:
        return False  # the API accepts no beginning of a reply with thoughts
    supported = provider.supports_prefill
    return family.supports_prefill if supported is None else supported


def _is_small(parameters: int | None) -> bool | None:
    return None if parameters is None else parameters < _SMALL_BELOW


def _first_known(*options: tuple[Source, Value | None]) -> tuple[Value, Source]:
    """Return the first value that is not None; the last option has one."""
    return next((value, source) for source, value in options if value is not None)


def _smallest(*sizes: int | None) -> int | None:
    return min((size for size in sizes if size), default=None)


def parameters_in(name: str) -> int | None:
    """Return the number of parameters in a name: `qwen3:8b`, `mixtral-8x7b`, `480b-a35b`."""
    found = [
        int(float(size) * int(experts or 1) * (10**9 if unit == "b" else 10**6))
        for experts, size, unit in _PARAMETERS.findall(name.lower())
    ]
    return max(found, default=None)


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
    provider: Provider, model: str, own: NamedModelSettings, listed: "ListedModel | None"
) -> tuple[Price | None, Source, int | None]:
    """Return the price, its source, and up to how many tokens it applies if limited."""
    if own.price is not None:
        return Price(**own.price.model_dump()), "settings", None
    if provider.local or model.endswith(_FREE_MODEL):
        return FREE, "catalogue", None
    if listed is None:
        return None, "default", None
    found = listed.get_prices(datetime.now(UTC))
    reports_writes = provider.wire == "anthropic"
    return _to_price(found, reports_writes=reports_writes), "price list", _flat_until(found)


def _listed(provider_id: str, model: str) -> "ListedModel | None":
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return None
    try:
        _, info = get_snapshot().find_provider_model(model, None, provider_id, None)
    except LookupError:
        return None
    return info


def _to_price(listed: "ModelPrice", *, reports_writes: bool) -> Price | None:
    read, written, output = (
        _base(listed.input_mtok),
        _base(listed.cache_write_mtok),
        _base(listed.output_mtok),
    )
    if read is None or output is None:
        return None
    cached = _base(listed.cache_read_mtok)
    if reports_writes:
        return Price(
            input_usd=read, output_usd=output, cached_input_usd=cached, cache_write_usd=written
        )
    # Some providers charge more than the input price for tokens that they write to a cache, and do
    # not report them, so all input tokens count: a cap must not be exceeded.
    dearest = max(read, written or 0.0)
    return Price(input_usd=dearest, output_usd=output, cached_input_usd=cached)


def _flat_until(listed: "ModelPrice") -> int | None:
    amounts = (listed.input_mtok, listed.output_mtok, listed.cache_read_mtok)
    starts = [tier.start for amount in amounts for tier in getattr(amount, "tiers", ())]
    return min(starts, default=None)


def _base(amount: Any) -> float | None:
    if amount is None:
        return None
    return float(getattr(amount, "base", amount))
