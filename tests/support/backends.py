"""How tests open the backends that the shipped suites are run against."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

from assay.contracts.errors import IsolationUnavailableError
from assay.contracts.ports import SandboxBackend
from assay.settings import SandboxSettings
from assay.wiring import open_backend
from tests.support.requirements import require

Tier = Literal["namespaces", "landlock"]
TIERS: tuple[Tier, ...] = ("namespaces", "landlock")


@asynccontextmanager
async def open_native(tier: Tier) -> AsyncGenerator[SandboxBackend]:
    """Open one tier of the native backend, or skip the test where this machine refuses it."""
    settings = SandboxSettings(backend="native", namespaces=tier == "namespaces")
    try:
        opening = open_backend(settings)
        backend = await opening.__aenter__()
    except IsolationUnavailableError as refusal:
        require(tier, available=False, why=str(refusal))
        raise
    try:
        yield backend
    finally:
        await opening.__aexit__(None, None, None)
