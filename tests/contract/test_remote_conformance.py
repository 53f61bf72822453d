"""A backend behind an executor with mutual TLS keeps every promise that it keeps by itself."""

from collections.abc import AsyncGenerator

import pytest

from assay.contracts.ports import SandboxBackend
from assay.selftest.checks import Check
from assay.selftest.conformance import REQUIREMENTS
from tests.support.backends import TIERS, Tier
from tests.support.executors import open_native_far_away
from tests.support.selftests import run_check

pytestmark = [pytest.mark.backends, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=TIERS)
async def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[SandboxBackend]:
    tier: Tier = request.param
    async with open_native_far_away(tier, tmp_path_factory.mktemp("executor")) as opened:
        yield opened


@pytest.mark.parametrize("check", REQUIREMENTS, ids=lambda check: check.name)
async def test_remote_keeps(check: Check, backend: SandboxBackend) -> None:
    await run_check(check, backend)
