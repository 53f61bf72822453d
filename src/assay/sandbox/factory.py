"""Chooses a way of isolating: the only place that knows them all."""

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from assay.contracts.errors import UsageError
from assay.contracts.execution import Isolation
from assay.contracts.ports import SandboxBackend
from assay.settings import SandboxSettings

if TYPE_CHECKING:
    from assay.sandbox.packages.store import PackageStore

BACKENDS = ("native", "remote")


def open_backend(settings: SandboxSettings) -> AbstractAsyncContextManager[SandboxBackend]:
    """Open the backend that the settings name, or the best one for this machine.

    Raises:
        UsageError: If no backend can give the isolation asked for on any machine.
        IsolationUnavailableError: On entering, if this machine cannot do it.
    """
    wanted = settings.isolation or Isolation.RESTRICTED
    if settings.backend == "remote":
        from assay.sandbox.remote.backend import open_remote  # noqa: PLC0415 - loads an extra

        return open_remote(settings.remote, wanted)
    if not Isolation.ISOLATED.satisfies(wanted):
        raise UsageError(
            f"no backend here gives the isolation {wanted.value!r}",
            hint=f"the native backend gives {Isolation.ISOLATED.value!r} at most",
        )
    # Imported late: nothing of a backend is needed until it is chosen.
    from assay.sandbox.native.backend import NativeOptions, open_native  # noqa: PLC0415

    packages = build_package_store(settings)
    options = NativeOptions(
        least=wanted,
        namespaces=settings.namespaces,
        preload=settings.preload,
        pool_size=settings.pool_size,
        max_concurrent=settings.max_concurrent,
        read_only=settings.read_only,
        search_path=settings.search_path,
        runtime_dir=settings.runtime_dir,
        packages=packages,
    )
    return open_native(options)


def build_package_store(settings: SandboxSettings) -> "PackageStore":
    """Build what fetches packages for sandboxes and keeps them; nothing is made yet."""
    from assay.sandbox.packages.store import PackageStore  # noqa: PLC0415 - see above

    return PackageStore(
        settings.packages_dir,
        environment=settings.index_environment,
        max_bytes=settings.packages_mb << 20,
    )


async def resolve_packages(settings: SandboxSettings) -> tuple[str, ...]:
    """Return everything that the packages of the settings come down to, `name==version`.

    Raises:
        PackageError: If a package cannot be had.
        MissingExtraError: If uv is needed and not installed.
    """
    from assay.sandbox.packages.target import own_target  # noqa: PLC0415 - see above

    target = own_target(module for stage in settings.preload for module in stage)
    store = build_package_store(settings)
    async with store.open_layer(settings.packages, target) as layer:
        return layer.pins
