"""How tests open the backends that the shipped suites are run against."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal

from assay.contracts.errors import IsolationUnavailableError
from assay.contracts.ports import SandboxBackend
from assay.settings.load import SandboxSettings
from assay.wiring import open_backend
from tests.support.requirements import require

Tier = Literal["namespaces", "landlock"]
TIERS: tuple[Tier, ...] = ("namespaces", "landlock")


@asynccontextmanager
async def open_native(tier: Tier) -> AsyncGenerator[SandboxBackend]:
    """Open one tier of the native backend, or skip the test where this machine refuses it."""
    settings = SandboxSettings(backend="native", namespaces=tier == "namespaces")
    opened: asyncio.Future[SandboxBackend] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()
    # A task of its own: fixtures of a session end in any order, and cancel scopes may not.
    life = asyncio.create_task(live(open_backend(settings), opened, done))
    try:
        backend = await opened
    except IsolationUnavailableError as refusal:
        require(tier, available=False, why=str(refusal))
        raise
    try:
        yield backend
    finally:
        done.set()
        await life


async def live(
    opening: AbstractAsyncContextManager[SandboxBackend],
    opened: asyncio.Future[SandboxBackend],
    done: asyncio.Event,
) -> None:
    try:
        async with opening as backend:
            opened.set_result(backend)
            await done.wait()
    except IsolationUnavailableError as refusal:
        opened.set_exception(refusal)
