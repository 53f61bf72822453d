"""Both tiers of the native backend hold against every attack, and every detector can fire."""

from collections.abc import AsyncGenerator

import pytest

from assay.contracts.ports import SandboxBackend
from assay.selftest.programs import KnownGapError
from assay.selftest.security_tests import CASES, HostileCase, check_case
from tests.support.backends import TIERS, Tier, open_native
from tests.support.requirements import require


@pytest.fixture(scope="module", params=TIERS)
async def backend(request: pytest.FixtureRequest) -> AsyncGenerator[SandboxBackend]:
    tier: Tier = request.param
    async with open_native(tier) as opened:
        yield opened


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group}:{case.name}")
async def test_native_holds(case: HostileCase, backend: SandboxBackend) -> None:
    if not case.applies_to(backend.isolation):
        pytest.skip(f"not promised at isolation {backend.isolation.value!r}")

    try:
        await check_case(case, backend)
    except KnownGapError as excuse:
        require("package-index", available=False, why=str(excuse))
