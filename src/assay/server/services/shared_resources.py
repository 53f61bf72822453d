"""Resources that all users share: one sandbox backend, the tools, the embedded model.

Modules that sessions and runs need are preloaded, so that the first request does not wait for
imports. Commands import components on demand; in a server, the first session would block the event
loop for half a second.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread

from assay.agent.graph import load_library
from assay.asyncx.owned_context import OwnedContext, open_task_group
from assay.chat.open_session import ChatResources
from assay.contracts.errors import AssayError, JournalError, MissingExtraError, UsageError
from assay.contracts.messages import Price
from assay.contracts.ports import Model
from assay.models.resolve import ResolvedModel, check_engine, choose, parse_name
from assay.server.db.models import Caller
from assay.server.errors import RequestRejectedError
from assay.settings.load import Settings
from assay.storage.codec import chat_event_from_json, event_from_json, request_from_json
from assay.wiring import open_backend, open_model, open_tools

if TYPE_CHECKING:
    from assay.models.open import OpenOptions


_PRELOADED: Final = ("assay.memory.stored_memory", "assay.models.open", "assay.screening.scan")


async def warm_up() -> None:
    """Load the modules that sessions and runs need with any model."""
    await to_thread.run_sync(_load)


def _load() -> None:
    for name in _PRELOADED:
        # A missing library is reported where it is needed.
        with suppress(ImportError, AssayError):
            import_module(name)
    with suppress(MissingExtraError):
        load_library()
    # Event parsers are built on first use.
    for read in (chat_event_from_json, event_from_json, request_from_json):
        with suppress(JournalError):
            read({})


async def _resolve(name: str, settings: Settings) -> tuple[str, ResolvedModel]:
    """Resolve a model name; load the library of its provider, which can take a second."""
    chosen = parse_name(name, settings.models)
    if chosen.kind == "auto":
        name = (await choose(settings.models)).name
        chosen = parse_name(name, settings.models)
    if chosen.provider is not None:
        # A missing library is reported where it is needed.
        with suppress(AssayError):
            await to_thread.run_sync(chosen.provider.load)
    return name, chosen


@asynccontextmanager
async def open_shared(
    settings: Settings, on_notice: Callable[[str], None]
) -> AsyncGenerator[ChatResources]:
    """Open the shared resources until the server shuts down.

    Each session gets its own model, except that all share the embedded one, which needs much
    memory.

    Raises:
        IsolationUnavailableError: If this machine cannot provide the isolation.
        MissingExtraError: If a dependency is not installed.
    """
    embedded: dict[str, Model] = {}
    opening_embedded = anyio.Lock()
    async with (
        open_backend(settings.sandbox, on_notice=on_notice) as backend,
        open_tools(settings, on_notice=on_notice) as tools,
        open_task_group() as tasks,
    ):

        @asynccontextmanager
        async def open_one(name: str, opening: "OpenOptions") -> AsyncGenerator[Model]:
            name, chosen = await _resolve(name, settings)
            if chosen.kind == "local":
                async with opening_embedded:
                    if name not in embedded:
                        owned: OwnedContext[Model] = OwnedContext(tasks)
                        model = open_model(name, settings=settings.models, opening=opening)
                        embedded[name] = await owned.take(model)
                yield embedded[name]
                return
            async with open_model(name, settings=settings.models, opening=opening) as model:
                yield model

        yield ChatResources(backend=backend, tools=tools, open_model=open_one)


async def price_of(name: str, settings: Settings) -> Price | None:
    """Return the price of an available model; None if it is unknown.

    Raises:
        UsageError: If there is no such model, or a key for it is missing.
        MissingExtraError: If a dependency is not installed.
        ModelUnavailableError: If its server does not answer.
    """
    name, chosen = await _resolve(name, settings)
    if chosen.kind == "local":
        check_engine()
        return Price(input_usd=0.0, output_usd=0.0)
    async with open_model(name, settings=settings.models) as model:
        return model.info.price


async def check_usable(name: str, caller: Caller, settings: Settings) -> str:
    """Return the name if the caller may use this model and it is available.

    Raises:
        UsageError: If no such model exists, or it is not offered.
        RequestRejectedError: If it cannot be used here, with the reason.
    """
    offered = (settings.models.default, *settings.serve.models)
    if name and name not in offered:
        kinds = {"auto", "local", "provider"}
        # Models of other kinds are files on this machine.
        if settings.serve.models or parse_name(name, settings.models).kind not in kinds:
            raise UsageError(
                f"the model {name!r} is not offered here",
                hint=f"offered are {', '.join(dict.fromkeys(offered))}",
            )
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
