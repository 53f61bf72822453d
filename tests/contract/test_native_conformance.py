"""Both tiers of the native backend keep every promise they make."""

from collections.abc import AsyncGenerator

import pytest

from assay.contracts.ports import SandboxBackend
from assay.selftest.checks import Check
from assay.selftest.conformance import REQUIREMENTS
from tests.support.backends import TIERS, Tier, open_native
from tests.support.selftests import run_check


@pytest.fixture(scope="module", params=TIERS)
async def backend(request: pytest.FixtureRequest) -> AsyncGenerator[SandboxBackend]:
    tier: Tier = request.param
    async with open_native(tier) as opened:
        yield opened


@pytest.mark.parametrize("check", REQUIREMENTS, ids=lambda check: check.name)
async def test_native_keeps(check: Check, backend: SandboxBackend) -> None:
    await run_check(check, backend)
