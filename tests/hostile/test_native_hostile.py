"""The native backend holds against every attack, and every attack's detector can fire."""

from collections.abc import AsyncGenerator

import pytest

from assay.contracts.ports import SandboxBackend
from assay.testing.hostile import CASES, HostileCase, check_case
from tests.support.backends import open_native


@pytest.fixture(scope="session")
async def backend() -> AsyncGenerator[SandboxBackend]:
    async with open_native() as opened:
        yield opened


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group}:{case.name}")
async def test_native_holds(case: HostileCase, backend: SandboxBackend) -> None:
    if not case.applies_to(backend.isolation):
        pytest.skip(f"not promised at isolation {backend.isolation.value!r}")

    await check_case(case, backend)
