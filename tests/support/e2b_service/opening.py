"""How tests open the E2B backend on the stand-in for its service."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

from pydantic import SecretStr

from assay.contracts.ports import SandboxBackend
from assay.sandbox.e2b.backend import open_e2b
from assay.settings.sections import E2BSettings
from tests.support.backends import open_native
from tests.support.e2b_service.service import KEY, Service, open_service

WORKSPACE = PurePosixPath("/tmp/workspace")
"""Where a program of a stand-in machine finds its files: nobody is root there, to make `/app`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A service that runs, and how to reach it."""

    service: Service
    settings: E2BSettings

    def with_settings(self, **changes: object) -> E2BSettings:
        return self.settings.model_copy(update=changes)

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
        settings = E2BSettings(
            api_key=SecretStr(KEY),
            api_url=service.url,
            sandbox_url=service.url,
            workspace=WORKSPACE,
        )
        yield StandIn(service=service, settings=settings)


@asynccontextmanager
async def open_backend_on_stand_in() -> AsyncGenerator[SandboxBackend]:
    async with open_stand_in() as stand_in, open_e2b(stand_in.settings) as backend:
        yield backend
