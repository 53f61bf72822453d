"""Both tiers of the native backend keep every promise they make."""

from collections.abc import AsyncGenerator

import pytest

from assay.contracts.ports import SandboxBackend
from assay.selftest.conformance import PROMISES, Requirement
from assay.selftest.programs import KnownGapError
from tests.support.backends import TIERS, Tier, open_native
from tests.support.requirements import require


@pytest.fixture(scope="module", params=TIERS)
async def backend(request: pytest.FixtureRequest) -> AsyncGenerator[SandboxBackend]:
    tier: Tier = request.param
    async with open_native(tier) as opened:
        yield opened


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
async def test_native_keeps(promise: Requirement, backend: SandboxBackend) -> None:
    if excuse := promise.excuse(backend):
        pytest.skip(excuse)

    try:
        await promise(backend)
    except KnownGapError as excuse:
        require("package-index", available=False, why=str(excuse))
