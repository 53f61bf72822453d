"""Docker, and gVisor on it, hold against every attack, and every detector can fire."""

from collections.abc import AsyncGenerator

import pytest

from assay.contracts.ports import SandboxBackend
from assay.testing.hostile import CASES, HostileCase, check_case
from assay.testing.programs import ExcusedError
from tests.support.docker import KINDS, Kind, open_docker_backend

pytestmark = pytest.mark.backends


@pytest.fixture(scope="module", params=KINDS)
async def backend(request: pytest.FixtureRequest) -> AsyncGenerator[SandboxBackend]:
    kind: Kind = request.param
    async with open_docker_backend(kind, spares=2) as opened:
        yield opened


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group}:{case.name}")
async def test_docker_holds(case: HostileCase, backend: SandboxBackend) -> None:
    if excuse := case.excuse_for(backend.isolation):
        pytest.skip(excuse)

    try:
        await check_case(case, backend)
    except ExcusedError as excuse:
        pytest.skip(str(excuse))
