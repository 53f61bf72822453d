"""The composition root: parts are chosen and joined here, and nowhere else."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from assay.contracts.execution import Limits
from assay.contracts.ports import Sandbox, SandboxBackend
from assay.sandbox import factory
from assay.settings import SandboxSettings, load_settings


def open_backend(
    settings: SandboxSettings | None = None,
) -> AbstractAsyncContextManager[SandboxBackend]:
    """Start a way of isolating, to open many sandboxes from."""
    return factory.open_backend(settings or load_settings().sandbox)


@asynccontextmanager
async def open_sandbox(
    limits: Limits | None = None, *, settings: SandboxSettings | None = None
) -> AsyncGenerator[Sandbox]:
    """Open one sandbox, with a backend of its own that ends with it.

    Raises:
        UsageError: If the settings are wrong.
        IsolationUnavailableError: If this machine cannot isolate as asked.
    """
    async with (
        open_backend(settings) as backend,
        backend.open_sandbox(limits or Limits()) as sandbox,
    ):
        yield sandbox
