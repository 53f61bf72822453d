"""The composition root: the only module that builds objects from settings and connects them."""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from assay.contracts.distribution import missing_extras
from assay.contracts.errors import MissingExtraError, UsageError
from assay.contracts.execution import DEFAULT_SPEC, EditableProject, Limits, SandboxSpec
from assay.contracts.goal import MemoryUse
from assay.contracts.ports import LessonStore, Model, Sandbox, SandboxBackend, Screen
from assay.sandbox import factory
from assay.sandbox.factory import EquippedBackend
from assay.settings.load import (
    ModelSettings,
    SandboxSettings,
    ScreeningSettings,
    Settings,
    load_settings,
)
from assay.storage.layers import LayerStore

if TYPE_CHECKING:
    from assay.environment.declared import DeclaredEnvironment
    from assay.memory.embedding import Embedder
    from assay.memory.types import Scope
    from assay.models.open import OpenOptions
    from assay.tools.discover import RegisteredTool


_LOCAL: Final = "local:"
_LOG: Final = logging.getLogger(__name__)


@asynccontextmanager
async def open_backend(
    settings: SandboxSettings | None = None,
    *,
    project: EditableProject | None = None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> AsyncGenerator[SandboxBackend]:
    """Start a backend that can open many sandboxes.

    Each sandbox has the packages and hosts from the settings, plus those of its own spec, and
    shows `project` as installed.
    `on_notice` receives a line about slow steps, such as an image build.

    Raises:
        UsageError: If a setting is invalid.
        IsolationUnavailableError: If this machine cannot isolate as requested.
    """
    chosen = settings or load_settings().sandbox
    equipment = SandboxSpec(packages=chosen.packages, hosts=chosen.hosts, project=project)
    async with factory.open_backend(chosen, on_notice) as backend:
        _LOG.info("sandboxes can be opened", extra={"backend": backend.name})
        yield backend if equipment == DEFAULT_SPEC else EquippedBackend(backend, equipment)


async def pin_environment(
    settings: SandboxSettings, declared: "DeclaredEnvironment"
) -> SandboxSettings:
    """Return the settings with an exact version and hashes for each package of a project.

    Nothing is preloaded: preloaded modules would take precedence over the project's versions.

    Raises:
        PackageError: If a package is not available.
        MissingExtraError: If uv is needed and not installed.
    """
    packages = (*declared.requirements, *settings.packages)
    settings = settings.model_copy(update={"packages": packages, "preload": ()})
    pins = await factory.resolve_packages(
        settings, project=declared.project, constraints=declared.constraints, hashes=True
    )
    return settings.model_copy(update={"packages": pins})


async def pin_packages(settings: SandboxSettings) -> SandboxSettings:
    """Return the settings with an exact version for each package and each of its dependencies.

    Raises:
        PackageError: If a package is not available.
        MissingExtraError: If uv is needed and not installed.
    """
    if not settings.packages:
        return settings
    pins = await factory.resolve_packages(settings)
    return settings.model_copy(update={"packages": pins})


@asynccontextmanager
async def open_sandbox(
    limits: Limits | None = None,
    *,
    packages: Sequence[str] = (),
    hosts: Sequence[str] = (),
    settings: SandboxSettings | None = None,
) -> AsyncGenerator[Sandbox]:
    """Open one sandbox with a separate backend, which closes with the sandbox.

    `packages` and `hosts` are added to those from the settings.

    Raises:
        UsageError: If a setting is invalid, or a host cannot be allowed here.
        PackageError: If a package is not available.
        IsolationUnavailableError: If this machine cannot isolate as requested.
    """
    equipment = SandboxSpec(packages=tuple(packages), hosts=tuple(hosts))
    async with (
        open_backend(settings) as backend,
        backend.open_sandbox(limits or Limits(), equipment) as sandbox,
    ):
        yield sandbox


def open_model(
    name: str = "", *, settings: ModelSettings | None = None, opening: "OpenOptions | None" = None
) -> AbstractAsyncContextManager[Model]:
    """Open the named model, or the one from the settings, with retries and a budget.

    `opening` sets the meter, the recording path and the callbacks. The name `replay:PATH` plays
    back a recorded run. Entering the context raises the errors of `assay.models.open.open_model`.
    """
    from assay.models import open as models

    known = settings or load_settings().models
    return models.open_model(name or known.default, known, opening)


def check_extras(
    feature: str,
    settings: Settings,
    *extras: str,
    model: str = "",
    packages: Sequence[str] = (),
) -> None:
    """Check that these extras are installed, and those for the model, the backend and packages.

    Raises:
        MissingExtraError: If any are missing; the message names all of them.
        UsageError: If there is no such model.
    """
    needed = [*extras]
    if model:
        from assay.models.resolve import extras_of

        needed += extras_of(model, settings.models)
    needed += factory.extras_of(settings.sandbox)
    if packages or settings.sandbox.packages:
        needed.append("packages")
    missing = missing_extras(needed)
    if missing:
        raise MissingExtraError(feature, extra=",".join(missing))


def settings_apart(settings: Settings, folder: Path) -> Settings:
    """Return settings that keep runs and their lessons in a separate folder.

    Benchmarks use them, so lessons of the user's runs stay hidden and benchmark runs leave no
    lessons for others. They use no memory server.
    """
    memory = settings.memory.model_copy(update={"store": "sqlite", "chroma_url": None})
    return settings.model_copy(update={"state_dir": folder, "memory": memory})


@asynccontextmanager
async def open_memory(
    use: MemoryUse,
    settings: Settings,
    *,
    project: str = "",
    on_notice: Callable[[str], None] = lambda _: None,
) -> AsyncGenerator[LessonStore]:
    """Open the failure memory; `off` gives a memory without lessons that stores nothing.

    `project` is the project folder. If it is empty, lessons apply to all projects.

    Raises:
        UsageError: If a newer version has written the file.
        JournalError: If the file cannot be opened or created.
    """
    from assay.memory.stored_memory import ResilientMemory, current_scope

    if use == "off":
        yield ResilientMemory(None)
        return
    place = current_scope(project)
    async with (
        _open_embedder(settings) as embedder,
        _open_store(settings, place, embedder, on_notice) as memory,
    ):
        yield ResilientMemory(memory, on_notice)


def _open_store(
    settings: Settings, place: "Scope", embedder: "Embedder", on_notice: Callable[[str], None]
) -> AbstractAsyncContextManager[LessonStore]:
    from assay.memory.database import MEMORY
    from assay.memory.stored_memory import open_sqlite_memory

    if settings.memory.store == "sqlite":
        path = settings.state_dir / MEMORY
        return open_sqlite_memory(path, place, embedder=embedder, on_notice=on_notice)
    from assay.memory.chroma_store import open_chroma_memory

    url = settings.memory.chroma_url or ""
    folder = None if url else settings.state_dir / "chroma"
    return open_chroma_memory(place, folder=folder, url=url, embedder=embedder)


@asynccontextmanager
async def _open_embedder(settings: Settings) -> AsyncGenerator["Embedder"]:
    from assay.memory.embedding import HashedEmbedder

    if not settings.memory.embedding_model:
        yield HashedEmbedder()
        return
    if settings.memory.embedding_model.startswith(_LOCAL):
        from assay.memory.embedding import ModelEmbedder
        from assay.models.local.embedding import open_local_embedding

        async with open_local_embedding(await _local_weights(settings)) as local:
            yield ModelEmbedder(local.name, local.vectors)
        return
    from assay.memory.embedding import Endpoint, open_endpoint_embedder
    from assay.models.resolve import key_for

    url = settings.memory.embedding_url or settings.models.base_url
    if url is None:
        raise UsageError(
            "memory.embedding_model is set, but there is no service that computes embeddings",
            hint="set memory.embedding_url",
        )
    key = key_for(url, settings.models)
    endpoint = Endpoint(base_url=url, model=settings.memory.embedding_model, api_key=key)
    async with open_endpoint_embedder(endpoint) as embedder:
        yield embedder


async def _local_weights(settings: Settings) -> Path:
    """Return the file of the embedding model: a configured path or a downloaded file."""
    from assay.models.local.weights import weights_named
    from assay.models.resolve import weights_store

    name = settings.memory.embedding_model.removeprefix(_LOCAL)
    if name.endswith(".gguf"):
        return Path(name)
    weights = weights_named(name)
    path = await weights_store(settings.models).find(weights)
    if path is None:
        raise UsageError(
            f"the embedding model {name!r} was not fetched", hint=f"`assay models pull {name}`"
        )
    return path


def open_layers(settings: Settings) -> LayerStore:
    """Return the store of captured workspaces."""
    return LayerStore(settings.state_dir, most_bytes=settings.agent.layers_mb << 20)


def build_screen(settings: ScreeningSettings) -> Screen:
    """Build the function that screens code before it runs."""
    from assay.screening.scan import Screening, ScreeningPolicy

    policy = ScreeningPolicy(
        deny_imports=settings.deny_imports, deny_calls=settings.deny_calls, allow=settings.allow
    )
    return Screening(policy)


@asynccontextmanager
async def open_tools(
    settings: Settings,
    *,
    project: Path | None = None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> AsyncGenerator[tuple["RegisteredTool", ...]]:
    """Open all tools: built-in tools, tools from files, and tools of third-party MCP servers.

    Tools that cannot be opened are left out, with a line to `on_notice`. Leaving the context ends
    the servers.

    Raises:
        MissingExtraError: If the package that reads tool files or speaks MCP is not installed.
    """
    from assay.tools.discover import collect, with_policy
    from assay.tools.mcp import open_foreign_tools

    approvals = settings.tools.approval
    declared = collect(settings.config_dir / "tools", project, approvals, on_notice)
    async with open_foreign_tools(settings.tools.mcp, on_notice) as foreign:
        taken = {each.tool.spec.name for each in declared}
        new = [each for each in foreign if each.tool.spec.name not in taken]
        yield (*declared, *with_policy(new, approvals))
