"""Opens a model by name, with retries, budget and recording.

Put retries around a metered model, not inside one: `RetryingModel(MeteredModel(model, meter))`.
Each attempt is then a separate call with its own reservation.
"""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import anyio

from assay.contracts.errors import ModelUnavailableError, UsageError
from assay.contracts.messages import Reply, Request
from assay.contracts.ports import Model, OnText, ignore_text
from assay.models.budget import Budget, Caps, MeteredModel
from assay.models.catalogue import DescribedModel, Provider, describe_model
from assay.models.connection import Connection
from assay.models.local.download import WeightsStore
from assay.models.local.weights import OnProgress, Weights, ignore_progress, weights_named
from assay.models.model_bases import WrappedModel
from assay.models.plain_text_tools import PlainTextToolsModel
from assay.models.recording import (
    RecordingModel,
    ReplayingModel,
    open_recording,
    read_recording,
)
from assay.models.resolve import (
    CUSTOM,
    ResolvedModel,
    check_engine,
    check_installed,
    choose,
    connection_to,
    parse_name,
    weights_store,
)
from assay.models.scripted import ScriptedModel, load_script
from assay.models.served import ServedModel, add_details, list_models
from assay.settings.load import BudgetSettings, ModelSettings, expand_home

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The number of attempts and the waits between them."""

    attempts: int = 5
    """Including the first one."""
    first_wait_s: float = 0.5
    """Doubled each time, and randomly shortened, so that clients do not retry simultaneously."""
    longest_wait_s: float = 30.0
    """For waits that Assay chooses; a provider may request more."""
    total_wait_s: float = 120.0
    """The sum over all attempts. A wait beyond it is not started."""


class RetryingModel(WrappedModel):
    """A model that repeats a request that was certainly not charged; other failures pass.

    A request is not charged if the provider rejected it or did not get it. After silence, or after
    a reply that broke off, the provider may charge it, so the user decides.

    Text that a listener received cannot be revoked, and a second answer would start with different
    words. So a failure after such text is not retried: it passes, and the listener decides. Without
    a listener, it is retried.
    """

    def __init__(
        self,
        model: Model,
        policy: RetryPolicy | None = None,
        *,
        sleep: Sleep = anyio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(model)
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._chance = chance

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        listener = _Listener(on_text)
        waited_s = 0.0
        attempt = 1
        while True:
            try:
                return await self._model.reply(request, on_text=listener)
            except ModelUnavailableError as error:
                if not (error.not_charged or error.retry_after_s is not None):
                    raise
                wait_s = self._wait_s(error, attempt)
                over = waited_s + wait_s > self._policy.total_wait_s
                if attempt >= self._policy.attempts or over or listener.heard:
                    raise
            waited_s += wait_s
            attempt += 1
            await self._sleep(wait_s)

    def _wait_s(self, error: ModelUnavailableError, attempt: int) -> float:
        if error.retry_after_s is not None:
            return error.retry_after_s
        doubled = self._policy.first_wait_s * 2.0 ** (attempt - 1)
        return min(doubled, self._policy.longest_wait_s) * (0.5 + 0.5 * self._chance())


class _Listener:
    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self.heard = False
        """Whether a listener received text."""

    def __call__(self, text: str) -> None:
        self.heard = self.heard or self._on_text is not ignore_text
        self._on_text(text)


_TIMEOUT_S = 10.0
"""Timeout for the model list of a server that the user named."""

OnNotice = Callable[[str], None]
"""Receives a sentence that the user should read before the step."""


def ignore_notice(sentence: str) -> None:
    """Ignore a notice."""
    del sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """The wrappers of a model, and the listener for its preparation."""

    meter: Budget | None = None
    """None: a new one with the caps of the settings."""
    record_to: Path | None = None
    """A file or folder for a recording of the run."""
    answered: int = 0
    """Requests answered before a resume: a script continues after them."""
    on_notice: OnNotice = ignore_notice
    """Receives the choice of `auto`, and the size of a download before it starts."""
    on_progress: OnProgress = ignore_progress


def build_meter(budget: BudgetSettings) -> Budget:
    """Build a budget with the caps of the settings."""
    return Budget(Caps(usd=budget.usd, tokens=budget.tokens, calls=budget.calls))


@asynccontextmanager
async def open_model(
    name: str, settings: ModelSettings, opening: OpenOptions | None = None
) -> AsyncGenerator[Model]:
    """Open the model with this name; leaving the context closes it.

    Raises:
        UsageError: If the name is unknown, or a key or a file for it is missing.
        MissingExtraError: If it needs a package that is not installed.
        ModelUnavailableError: If a server does not answer, or weights cannot be downloaded.
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
        if not replayed and not model.info.tool_calls:
            model = PlainTextToolsModel(model)
        if not replayed:
            # A recorded failure was already retried.
            model = RetryingModel(model)
        if opening.record_to is not None:
            file = await stack.enter_async_context(
                open_recording(opening.record_to, model=model.name, info=model.info)
            )
            model = RecordingModel(model, file)
        yield model


@asynccontextmanager
async def _open(
    chosen: ResolvedModel, settings: ModelSettings, opening: OpenOptions
) -> AsyncGenerator[Model]:
    # Shells do not expand a tilde after a colon.
    path = expand_home(Path(chosen.rest))
    match chosen.kind:
        case "scripted":
            script = load_script(path)
            yield ScriptedModel(script, name=f"scripted:{chosen.rest}", answered=opening.answered)
        case "replay":
            yield ReplayingModel(read_recording(path), matching="strict")
        case "replay-lenient":
            yield ReplayingModel(read_recording(path), matching="lenient")
        case "local":
            async with await _open_embedded(chosen.rest, settings, opening) as model:
                yield model
        case "provider":
            async with await _open_provider(chosen, settings, opening) as model:
                yield model
        case "auto":
            raise AssertionError("what auto means was chosen before")
        case _:
            assert_never(chosen.kind)


async def _open_provider(
    chosen: ResolvedModel, settings: ModelSettings, opening: OpenOptions
) -> AbstractAsyncContextManager[Model]:
    provider = chosen.provider
    assert provider is not None  # noqa: S101 - for the type checker; this kind has one
    check_installed(provider)
    connection = connection_to(provider, settings)
    model, described = await describe_at(provider, chosen.rest, settings)
    if notice := _notice_of_defaults(f"{provider.name}:{model}", described):
        opening.on_notice(notice)
    return provider.load()(provider, model, info=described.info, connection=connection)


async def describe_at(
    provider: Provider, name: str, settings: ModelSettings
) -> tuple[str, DescribedModel]:
    """Return the name of a model at a provider, and its properties; asks only servers for them.

    Without a name, it is the provider's default model, or the first one of a server.

    Raises:
        UsageError: If a key is missing, or the server has no model.
        ModelUnavailableError: If the server does not answer, and no name is given.
    """
    connection = connection_to(provider, settings)
    model = name or provider.default_model
    served = ServedModel(name=model)
    if provider.local or provider.name == CUSTOM:
        served = await _served(provider, connection, model)
        served = await add_details(provider.name, connection, served, timeout_s=_TIMEOUT_S)
        model = served.name
    own = settings.named.get(f"{provider.name}:{model}") or settings.named.get(model)
    return model, describe_model(provider, model, own=own, served=served)


def _notice_of_defaults(name: str, described: DescribedModel) -> str:
    """Name the sizes that nothing says, and the setting for them; empty if all are known."""
    if described.sources["context_tokens"] != "default":
        return ""
    info = described.info
    return (
        f"the size of {name} is not known: Assay assumes a context of {info.context_tokens} tokens "
        f'and replies of {info.max_output_tokens}; set context_tokens under [models."{name}"]'
    )


async def _served(provider: Provider, connection: Connection, name: str) -> ServedModel:
    """Return the server's data on a model; without a name, on its first model."""
    models = await list_models(connection, timeout_s=_TIMEOUT_S)
    if name:
        # The server may know more names than it lists, and rejects unknown ones itself.
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
    from assay.models.local.model import open_local_model

    check_engine()
    if settings.local_path and not name:
        path = expand_home(settings.local_path)
        return open_local_model(path, name=path.stem, idle_s=settings.idle_s)
    weights = weights_named(name)
    return open_local_model(
        await pull(weights, weights_store(settings), opening),
        name=weights.name,
        context_tokens=weights.context_tokens,
        sampling=weights.sampling,
        idle_s=settings.idle_s,
    )


async def pull(weights: Weights, store: WeightsStore, opening: OpenOptions) -> Path:
    """Return the weights file; announces a download and its size first.

    Raises:
        ModelUnavailableError: If no source has it, or the disk has no room.
    """
    if path := await store.find(weights):
        return path
    opening.on_notice(
        f"fetching {weights.title} once: {weights.size_bytes / 1e9:.1f} GB into "
        f"{store.folder} ({weights.licence})"
    )
    return await store.pull(weights, on_progress=opening.on_progress)
