"""The native backend keeps every promise of the contract."""

from collections.abc import AsyncGenerator

import pytest

from assay.contracts.ports import SandboxBackend
from assay.testing.conformance import PROMISES, Promise
from tests.support.backends import open_native


@pytest.fixture(scope="session")
async def backend() -> AsyncGenerator[SandboxBackend]:
    async with open_native() as opened:
        yield opened


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
async def test_native_keeps(promise: Promise, backend: SandboxBackend) -> None:
    if not backend.isolation.satisfies(promise.needs):
        pytest.skip(f"not promised at isolation {backend.isolation.value!r}")

    await promise(backend)
