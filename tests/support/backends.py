"""How tests open the backends that the shipped suites are run against."""

from contextlib import AbstractAsyncContextManager

from assay.contracts.execution import Isolation
from assay.contracts.ports import SandboxBackend
from assay.settings import SandboxSettings
from assay.wiring import open_backend


def open_native() -> AbstractAsyncContextManager[SandboxBackend]:
    """Open the native backend at the best isolation this machine can give."""
    return open_backend(SandboxSettings(backend="native"))


def open_isolated() -> AbstractAsyncContextManager[SandboxBackend]:
    """Open the native backend with namespaces, or fail where there are none."""
    return open_backend(SandboxSettings(backend="native", isolation=Isolation.ISOLATED))
