"""Opens the model that a name stands for, wrapped so that it retries, is metered and recorded."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

from assay.contracts.errors import ModelUnavailableError, UsageError
from assay.contracts.ports import Model
from assay.models.budget import Budget, Caps, MeteredModel
from assay.models.catalogue import Provider, facts_for
from assay.models.connection import Connection
from assay.models.discover_servers import ServedModel, list_models
from assay.models.local.download import WeightsStore
from assay.models.local.partial_file import OnProgress, ignore_progress
from assay.models.local.weights import Weights
from assay.models.plain_text_tools import PlainTextToolsModel
from assay.models.recorded import Matching, RecordingModel, ReplayingModel
from assay.models.recording import open_recording, read_recording
from assay.models.resolve import (
    CUSTOM,
    ResolvedModel,
    check_engine,
    check_installed,
    choose,
    connection_to,
    embedded,
    parse_name,
    price_overrides,
    weights_store,
)
from assay.models.retry import RetryingModel
from assay.models.scripted import ScriptedModel, load_script
from assay.settings.load import BudgetSettings, ModelSettings, expand_home

_PATIENCE_S = 10.0
"""For a server that somebody named to say what it has."""

OnNotice = Callable[[str], None]
"""Told, in a sentence, what a person should know before it happens."""


def ignore_notice(sentence: str) -> None:
    """Be the listener of someone whom nobody watches."""
    del sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """What goes around a model, and who is told while it is made ready."""

    meter: Budget | None = None
    """None: one of its own, with the caps of the settings."""
    record_to: Path | None = None
    """A file or folder to record the run to."""
    answered: int = 0
    """Requests that were answered in earlier sittings: a script goes on after them."""
    on_notice: OnNotice = ignore_notice
    """Told which model `auto` took, and what is about to be fetched and how large it is."""
    on_progress: OnProgress = ignore_progress


def build_meter(budget: BudgetSettings) -> Budget:
    """Build a meter with the caps of the settings."""
    return Budget(Caps(usd=budget.usd, tokens=budget.tokens, calls=budget.calls))


@asynccontextmanager
async def open_model(
    name: str, settings: ModelSettings, opening: OpenOptions | None = None
) -> AsyncGenerator[Model]:
    """Open the model that a name stands for; leaving the context closes it.

    Raises:
        UsageError: If the name is not known, or a key or a file for it is missing.
        MissingExtraError: If something it needs is not installed.
        ModelUnavailableError: If a server does not answer, or weights cannot be fetched.
    """
    opening = opening or OpenOptions()
    chosen = parse_name(name, settings)
    if chosen.kind == "auto":
        usable = await choose(settings)
        opening.on_notice(f"using {usable.name}: {usable.reason}")
        chosen = parse_name(usable.name, settings)
    replayed = chosen.kind in {"replay", "replay-lenient"}
    async with AsyncExitStack() as stack:
        model: Model = MeteredModel(
            await stack.enter_async_context(_open(chosen, settings, opening)),
            opening.meter or build_meter(settings.budget),
            as_asked=replayed,
        )
        if not replayed and not model.facts.tool_calls:
            model = PlainTextToolsModel(model)
        if not replayed:
            # A recorded failure is one that was retried already.
            model = RetryingModel(model)
        if opening.record_to is not None:
            file = await stack.enter_async_context(
                open_recording(opening.record_to, model=model.name, facts=model.facts)
            )
            model = RecordingModel(model, file)
        yield model


@asynccontextmanager
async def _open(
    chosen: ResolvedModel, settings: ModelSettings, opening: OpenOptions
) -> AsyncGenerator[Model]:
    match chosen.kind:
        case "scripted":
            yield _scripted(chosen.rest, opening.answered)
        case "replay":
            yield _replaying(chosen.rest, "strict")
        case "replay-lenient":
            yield _replaying(chosen.rest, "lenient")
        case "local":
            async with await _open_embedded(chosen.rest, settings, opening) as model:
                yield model
        case "provider":
            async with await _open_provider(chosen, settings) as model:
                yield model
        case "auto":
            raise AssertionError("what auto means was chosen before")
        case _:
            assert_never(chosen.kind)


def _scripted(path: str, answered: int) -> ScriptedModel:
    # A shell leaves a tilde alone that stands behind a colon.
    script = load_script(expand_home(Path(path)))
    return ScriptedModel(script, name=f"scripted:{path}", answered=answered)


def _replaying(path: str, matching: Matching) -> ReplayingModel:
    return ReplayingModel(read_recording(expand_home(Path(path))), matching=matching)


async def _open_provider(
    chosen: ResolvedModel, settings: ModelSettings
) -> AbstractAsyncContextManager[Model]:
    provider = chosen.provider
    assert provider is not None  # noqa: S101 - for the type checker; this kind has one
    check_installed(provider)
    connection = connection_to(provider, settings)
    model = chosen.rest or provider.default_model
    context_tokens = None
    if provider.local or provider.name == CUSTOM:
        served = await _served(provider, connection, model)
        model, context_tokens = served.name, served.context_tokens
    facts = facts_for(provider, model, price_overrides=price_overrides(settings))
    if context_tokens is not None:
        most = min(facts.max_output_tokens, context_tokens)
        facts = replace(facts, context_tokens=context_tokens, max_output_tokens=most)
    match provider.wire:
        case "openai":
            from assay.models.providers.openai_compatible import open_openai_compatible as open_wire
        case "anthropic":
            from assay.models.providers.anthropic import open_anthropic as open_wire
        case "gemini":
            from assay.models.providers.gemini import open_gemini as open_wire
        case _:
            assert_never(provider.wire)
    return open_wire(provider, model, facts=facts, connection=connection)


async def _served(provider: Provider, connection: Connection, name: str) -> ServedModel:
    """Ask a server what it says of a model; without a name, of the first one it has."""
    models = await list_models(connection, patience_s=_PATIENCE_S)
    if name:
        # It may know more names than it lists, and will say so if it does not know this one.
        same = (model for model in models or () if model.name == name)
        return next(same, ServedModel(name=name))
    if models is None:
        raise ModelUnavailableError(
            f"{provider.title} does not answer at {provider.base_url}",
            hint="start its server, or see `assay models` for what is usable",
        )
    if not models:
        raise UsageError(
            f"{provider.title} has no model", hint=f"load one, or name it: {provider.name}:MODEL"
        )
    return models[0]


async def _open_embedded(
    name: str, settings: ModelSettings, opening: OpenOptions
) -> AbstractAsyncContextManager[Model]:
    from assay.models.local.model import LocalModelOptions, open_local_model

    check_engine()
    if settings.local_path and not name:
        path = expand_home(settings.local_path)
        options = LocalModelOptions(path=path, name=path.stem, idle_s=settings.idle_s)
        return open_local_model(options)
    weights = embedded(name)
    options = LocalModelOptions(
        path=await pull(weights, weights_store(settings), opening),
        name=weights.name,
        context_tokens=weights.context_tokens,
        sampling=weights.sampling,
        idle_s=settings.idle_s,
    )
    return open_local_model(options)


async def pull(weights: Weights, store: WeightsStore, opening: OpenOptions) -> Path:
    """Return the file of weights; if they have to be fetched, what and how much is said first.

    Raises:
        ModelUnavailableError: If no source has them, or there is no room.
    """
    if path := await store.find(weights):
        return path
    opening.on_notice(
        f"fetching {weights.title} once: {weights.size_bytes / 1e9:.1f} GB into "
        f"{store.folder} ({weights.licence})"
    )
    return await store.pull(weights, on_progress=opening.on_progress)
