"""How tests open a native backend that is theirs alone."""

import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from assay.contracts.execution import PythonCode
from assay.contracts.ports import SandboxBackend
from assay.settings.load import SandboxSettings
from assay.wiring import open_backend

ASSAY = (sys.executable, "-m", "assay")


def open_own(
    runtime_dir: Path,
    *,
    pool_size: int = 2,
    namespaces: bool = True,
    max_concurrent: int = 32,
    preload: tuple[tuple[str, ...], ...] = (),
) -> AbstractAsyncContextManager[SandboxBackend]:
    """Open a backend whose engine is written down where no other engine is."""
    settings = SandboxSettings(
        backend="native",
        preload=preload,
        pool_size=pool_size,
        namespaces=namespaces,
        max_concurrent=max_concurrent,
        runtime_dir=runtime_dir,
    )
    return open_backend(settings)


def python(source: str) -> PythonCode:
    return PythonCode(source=source.encode())
