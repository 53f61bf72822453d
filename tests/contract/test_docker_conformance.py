"""Docker, and gVisor on it, keep every promise they make."""

from collections.abc import AsyncGenerator

import pytest

from assay.contracts.ports import SandboxBackend
from assay.testing.conformance import PROMISES, Promise
from assay.testing.programs import ExcusedError
from tests.support.docker import KINDS, Kind, open_docker_backend

pytestmark = pytest.mark.backends


@pytest.fixture(scope="module", params=KINDS)
async def backend(request: pytest.FixtureRequest) -> AsyncGenerator[SandboxBackend]:
    kind: Kind = request.param
    async with open_docker_backend(kind, spares=2) as opened:
        yield opened


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
async def test_docker_keeps(promise: Promise, backend: SandboxBackend) -> None:
    if excuse := promise.excuse(backend):
        pytest.skip(excuse)

    try:
        await promise(backend)
    except ExcusedError as excuse:
        pytest.skip(str(excuse))
