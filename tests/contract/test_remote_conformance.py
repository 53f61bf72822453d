"""A backend behind an executor with mutual TLS keeps every promise that it keeps by itself."""

from collections.abc import AsyncGenerator

import pytest

from assay.contracts.ports import SandboxBackend
from assay.selftest.conformance import PROMISES, Requirement
from assay.selftest.programs import KnownGapError
from tests.support.backends import TIERS, Tier
from tests.support.executors import open_native_far_away
from tests.support.requirements import require

pytestmark = [pytest.mark.backends, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=TIERS)
async def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[SandboxBackend]:
    tier: Tier = request.param
    async with open_native_far_away(tier, tmp_path_factory.mktemp("executor")) as opened:
        yield opened


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
async def test_remote_keeps(promise: Requirement, backend: SandboxBackend) -> None:
    if excuse := promise.excuse(backend):
        pytest.skip(excuse)

    try:
        await promise(backend)
    except KnownGapError as excuse:
        require("package-index", available=False, why=str(excuse))
