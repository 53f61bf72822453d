"""A backend behind an executor with mutual TLS holds against every attack that it holds against."""

from collections.abc import AsyncGenerator

import pytest

from assay.contracts.ports import SandboxBackend
from assay.selftest.programs import KnownGapError
from assay.selftest.security_tests import CASES, HostileCase, check_case
from tests.support.backends import TIERS, Tier
from tests.support.executors import open_native_far_away
from tests.support.requirements import require

pytestmark = pytest.mark.backends


@pytest.fixture(scope="module", params=TIERS)
async def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[SandboxBackend]:
    tier: Tier = request.param
    async with open_native_far_away(tier, tmp_path_factory.mktemp("executor")) as opened:
        yield opened


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group}:{case.name}")
async def test_remote_holds(case: HostileCase, backend: SandboxBackend) -> None:
    if excuse := case.excuse_for(backend.isolation):
        pytest.skip(excuse)

    try:
        await check_case(case, backend)
    except KnownGapError as excuse:
        require("package-index", available=False, why=str(excuse))
