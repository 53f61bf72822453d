"""How tests open the E2B backend on the stand-in for its service."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from assay.contracts.ports import SandboxBackend
from assay.sandbox.e2b.backend import open_e2b
from assay.sandbox.e2b.vm import E2BOptions
from tests.support.backends import open_native
from tests.support.e2b_service.service import KEY, Service, open_service

WORKSPACE = PurePosixPath("/tmp/workspace")
"""Where a program of a stand-in machine finds its files: nobody is root there, to make `/app`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A service that runs, and how to reach it."""

    service: Service
    options: E2BOptions

    def with_options(self, **changes: object) -> E2BOptions:
        return replace(self.options, **changes)

    def environment(self) -> dict[str, str]:
        """Return what the command needs to know."""
        return {
            "E2B_API_KEY": KEY,
            "ASSAY_SANDBOX__E2B__API_URL": self.service.url,
            "ASSAY_SANDBOX__E2B__SANDBOX_URL": self.service.url,
            "ASSAY_SANDBOX__E2B__WORKSPACE": str(WORKSPACE),
        }


@asynccontextmanager
async def open_stand_in() -> AsyncGenerator[StandIn]:
    async with open_native("namespaces") as native, open_service(native) as service:
        options = E2BOptions(
            api_key=KEY,
            template="code-interpreter-v1",
            timeout_s=300,
            api_url=service.url,
            sandbox_url=service.url,
            workspace=WORKSPACE,
        )
        yield StandIn(service=service, options=options)


@asynccontextmanager
async def open_backend_on_stand_in() -> AsyncGenerator[SandboxBackend]:
    async with open_stand_in() as stand_in, open_e2b(stand_in.options) as backend:
        yield backend
