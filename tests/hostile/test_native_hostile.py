"""Both tiers of the native backend hold against every attack, and every detector can fire."""

from collections.abc import AsyncGenerator

import pytest

from assay.contracts.ports import SandboxBackend
from assay.selftest.checks import Check
from assay.selftest.security_tests import ATTACKS
from tests.support.backends import TIERS, Tier, open_native
from tests.support.selftests import run_check


@pytest.fixture(scope="module", params=TIERS)
async def backend(request: pytest.FixtureRequest) -> AsyncGenerator[SandboxBackend]:
    tier: Tier = request.param
    async with open_native(tier) as opened:
        yield opened


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.group}:{attack.name}")
async def test_native_holds(attack: Check, backend: SandboxBackend) -> None:
    await run_check(attack, backend)
