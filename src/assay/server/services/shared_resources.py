"""Resources that all users share: one sandbox backend, the tools, the embedded model.

Modules that sessions and runs need are preloaded, so that the first request does not wait for
imports. Commands import components on demand; in a server, the first session would block the event
loop for half a second.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread

from assay.agent.graph import load_library
from assay.asyncx.owned_context import OwnedContext, open_seats
from assay.chat.open_session import Shared
from assay.contracts.errors import AssayError, JournalError, MissingExtraError, UsageError
from assay.contracts.messages import Price
from assay.contracts.ports import Model
from assay.models.catalogue import Provider
from assay.models.resolve import check_engine, choose, parse_name
from assay.server.db.models import Caller
from assay.server.errors import RequestRejectedError
from assay.settings.load import Settings
from assay.storage.codec import chat_event_from_json, event_from_json, goal_from_json
from assay.wiring import open_backend, open_model, open_tools

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from assay.models.open import OpenOptions


_PRELOADED: Final = (
    "assay.memory.stored_memory",
    "assay.memory.stored_memory",
    "assay.memory.stored_memory",
    "assay.models.open",
    "assay.screening.scan",
)


async def warm_up() -> None:
    """Load the modules that sessions and runs need with any model."""
    await to_thread.run_sync(_load)


async def load_provider(provider: Provider) -> None:
    """Load the library of a provider, which can take a second, in a thread."""
    # A missing library is reported where it is needed.
    with suppress(AssayError):
        await to_thread.run_sync(provider.load)


def _load() -> None:
    for name in _PRELOADED:
        _import(name)
    with suppress(MissingExtraError):
        load_library()
    # Event parsers are built on first use.
    for read in (chat_event_from_json, event_from_json, goal_from_json):
        with suppress(JournalError):
            read({})


def _import(name: str) -> None:
    # A missing library is reported where it is needed.
    with suppress(ImportError, AssayError):
        import_module(name)


@asynccontextmanager
async def open_shared(
    settings: Settings, on_notice: Callable[[str], None]
) -> AsyncGenerator[Shared]:
    """Open the shared resources until the server shuts down.

    Raises:
        IsolationUnavailableError: If this machine cannot provide the isolation.
        MissingExtraError: If a dependency is not installed.
    """
    async with (
        open_backend(settings.sandbox, on_notice=on_notice) as backend,
        open_tools(settings, on_notice=on_notice) as tools,
        open_seats() as tasks,
    ):
        models = _Models(settings, tasks)
        yield Shared(backend=backend, tools=tools, open_model=models.open)


class _Models:
    """Opens a model for each caller, but shares the embedded one, which needs much memory."""

    def __init__(self, settings: Settings, tasks: "TaskGroup") -> None:
        self._settings = settings.models
        self._tasks = tasks
        self._embedded: dict[str, Model] = {}
        self._opening = anyio.Lock()

    @asynccontextmanager
    async def open(self, name: str, opening: "OpenOptions") -> AsyncGenerator[Model]:
        chosen = parse_name(name, self._settings)
        if chosen.kind == "auto":
            name = (await choose(self._settings)).name
            chosen = parse_name(name, self._settings)
        if chosen.kind == "local":
            yield await self._shared(name, opening)
            return
        if chosen.provider is not None:
            await load_provider(chosen.provider)
        async with open_model(name, settings=self._settings, opening=opening) as model:
            yield model

    async def _shared(self, name: str, opening: "OpenOptions") -> Model:
        async with self._opening:
            if name not in self._embedded:
                seat: OwnedContext[Model] = OwnedContext(self._tasks)
                opened: AbstractAsyncContextManager[Model] = open_model(
                    name, settings=self._settings, opening=opening
                )
                self._embedded[name] = await seat.take(opened)
            return self._embedded[name]


async def price_of(name: str, settings: Settings) -> Price | None:
    """Return the price of an available model; None if it is unknown.

    Raises:
        UsageError: If there is no such model, or a key for it is missing.
        MissingExtraError: If a dependency is not installed.
        ModelUnavailableError: If its server does not answer.
    """
    chosen = parse_name(name, settings.models)
    if chosen.kind == "auto":
        name = (await choose(settings.models)).name
        chosen = parse_name(name, settings.models)
    if chosen.kind == "local":
        check_engine()
        return Price(input_usd=0.0, output_usd=0.0)
    if chosen.provider is not None:
        await load_provider(chosen.provider)
    async with open_model(name, settings=settings.models) as model:
        return model.facts.price


async def check_usable(name: str, caller: Caller, settings: Settings) -> str:
    """Return the name if the caller may use this model and it is available.

    Raises:
        UsageError: If no such model exists, or it is not offered.
        RequestRejectedError: If it cannot be used here, with the reason.
    """
    name = check_model(name, settings)
    if name and name != settings.models.default:
        try:
            await price_of(name, settings)
        except AssayError as error:
            raise RequestRejectedError(
                f"the model {name!r} cannot be used: {error}",
                why="unusable-model",
                # The message names files of the server.
                hint=error.hint if caller.role == "admin" else "",
                param="model",
            ) from error
    return name


def check_model(name: str, settings: Settings) -> str:
    """Return the name if clients may request this model over the network.

    Raises:
        UsageError: If no such model exists, or it is not offered.
    """
    offered = (settings.models.default, *settings.serve.models)
    if not name or name in offered:
        return name
    if settings.serve.models:
        raise UsageError(f"the model {name!r} is not offered here", hint=_choices(offered))
    if parse_name(name, settings.models).kind not in {"auto", "local", "provider"}:
        # Other kinds are files on this machine.
        raise UsageError(f"the model {name!r} is not offered here", hint=_choices(offered))
    return name


def _choices(offered: tuple[str, ...]) -> str:
    return f"offered are {', '.join(dict.fromkeys(offered))}"
