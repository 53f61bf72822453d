"""Choose and open the sandbox backend; the only module that knows all of them.

`EquippedBackend` wraps a backend so that all its sandboxes have the same packages and hosts.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Final

from assay.contracts.errors import AssayError, IsolationUnavailableError, UsageError
from assay.contracts.execution import (
    DEFAULT_SPEC,
    EditableProject,
    Isolation,
    Limits,
    SandboxSpec,
)
from assay.contracts.extensions import declared_by, find_extensions, load_extension
from assay.contracts.ports import Sandbox, SandboxBackend, trouble_of
from assay.settings.load import SandboxSettings
from assay.settings.types import BACKEND_GROUP, BACKENDS

if TYPE_CHECKING:
    from assay.sandbox.packages.store import PackageStore


OnNotice = Callable[[str], None]
"""Receives a short notice about a slow operation."""
_Opening = AbstractAsyncContextManager[SandboxBackend]

_MOST: Final = {
    "auto": Isolation.KERNEL,
    "native": Isolation.ISOLATED,
    "docker": Isolation.ISOLATED,
    "docker+runsc": Isolation.KERNEL,
    "e2b": Isolation.MACHINE,
}
"""The strongest isolation that each backend reaches on a suitable machine."""


def open_backend(
    settings: SandboxSettings, on_notice: OnNotice = lambda _: None
) -> AbstractAsyncContextManager[SandboxBackend]:
    """Open the backend that the settings name, or the best one for this machine.

    Raises:
        UsageError: If no such backend reaches the requested isolation on any machine.
        IsolationUnavailableError: On entering, if this machine does not support it.
    """
    backend = _backend(settings)
    wanted = settings.isolation or Isolation.RESTRICTED
    if backend not in ("auto", *BACKENDS):
        return _open_installed(settings, wanted)
    if backend == "remote":
        from assay.sandbox.remote.backend import open_remote

        return open_remote(settings.remote, wanted)
    if not _MOST[backend].satisfies(wanted):
        raise UsageError(
            f"no backend here gives the isolation {wanted.value!r}"
            if backend == "auto"
            else f"the backend {backend!r} cannot give the isolation {wanted.value!r}",
            hint="native and docker give 'isolated' at most, docker+runsc 'kernel', e2b 'machine'",
        )
    if backend == "e2b":
        from assay.sandbox.e2b.backend import open_e2b

        return open_e2b(settings.e2b)
    if backend == "native":
        return _open_native(settings, wanted)
    if backend in {"docker", "docker+runsc"}:
        return _open_docker(settings, on_notice, gvisor=backend == "docker+runsc")
    if not Isolation.ISOLATED.satisfies(wanted):
        return _open_docker(settings, on_notice, gvisor=True)
    return _open_best(settings, wanted, on_notice)


def extras_of(settings: SandboxSettings) -> tuple[str, ...]:
    """Return the extras that the backend of the settings needs."""
    backend = settings.backend.partition("+")[0]
    extra = {"docker": "docker", "e2b": "e2b", "remote": "executor"}.get(backend)
    return (extra,) if extra else ()


def _backend(settings: SandboxSettings) -> str:
    if settings.backend == "docker" and settings.docker.runtime:
        return f"docker+{settings.docker.runtime}"
    return settings.backend


@asynccontextmanager
async def _open_installed(
    settings: SandboxSettings, wanted: Isolation
) -> AsyncGenerator[SandboxBackend]:
    """Open a backend of another distribution; it must reach the requested isolation."""
    entry = find_extensions(BACKEND_GROUP, taken=("auto", *BACKENDS))[settings.backend]
    open_it = load_extension(entry, FunctionType)
    async with open_it(settings) as backend:
        if not isinstance(backend, SandboxBackend):
            raise UsageError(
                f"{declared_by(entry)}, which opens no assay.contracts.ports.SandboxBackend, "
                f"but an object of type {type(backend).__name__}"
            )
        if not backend.isolation.satisfies(wanted):
            raise IsolationUnavailableError(
                f"the backend {settings.backend!r} isolates as {backend.isolation.value!r}, "
                f"and {wanted.value!r} is required"
            )
        yield backend


@asynccontextmanager
async def _open_best(
    settings: SandboxSettings, wanted: Isolation, on_notice: OnNotice
) -> AsyncGenerator[SandboxBackend]:
    """Open the native backend, or Docker if that is refused; never a weaker backend."""
    async with AsyncExitStack() as opened:
        try:
            backend = await opened.enter_async_context(_open_native(settings, wanted))
        except IsolationUnavailableError as refusal:
            docker = _open_docker(settings, on_notice, gvisor=bool(settings.docker.runtime))
            try:
                backend = await opened.enter_async_context(docker)
            except AssayError as error:
                raise IsolationUnavailableError(
                    f"{refusal}; and Docker will not do either: {error}", hint=refusal.hint
                ) from error
        yield backend


def _open_native(settings: SandboxSettings, wanted: Isolation) -> _Opening:
    # Imported late: a backend is loaded only when it is chosen.
    from assay.sandbox.native.host.backend import NativeConfig, open_native

    packages = build_package_store(settings)
    options = NativeConfig(
        least=wanted,
        namespaces=settings.namespaces,
        preload=settings.preload,
        pool_size=settings.pool_size,
        max_concurrent=settings.max_concurrent,
        read_only=settings.read_only,
        site_packages=settings.site_packages,
        search_path=settings.search_path,
        runtime_dir=settings.runtime_dir,
        packages=packages,
    )
    return open_native(options)


def _open_docker(settings: SandboxSettings, on_notice: OnNotice, *, gvisor: bool) -> _Opening:
    from assay.sandbox.docker.backend import open_docker

    store = build_package_store(settings)
    return open_docker(settings, store, gvisor=gvisor, on_notice=on_notice)


def build_package_store(settings: SandboxSettings) -> "PackageStore":
    """Build the package store for sandboxes; this creates no folder yet."""
    from assay.sandbox.packages.store import PackageStore

    return PackageStore(
        settings.packages_dir,
        environment=settings.index_environment,
        max_bytes=settings.packages_mb << 20,
    )


async def resolve_packages(
    settings: SandboxSettings,
    *,
    project: EditableProject | None = None,
    constraints: Sequence[str] = (),
    hashes: bool = False,
) -> tuple[str, ...]:
    """Return all packages that the configured packages resolve to, as `name==version`.

    With `hashes`, the digests of their files follow: `name==version --hash=sha256:…`.

    Raises:
        PackageError: If a package is not available.
        MissingExtraError: If uv is needed and not installed.
    """
    from assay.sandbox.packages.target import own_target

    target = own_target(module for stage in settings.preload for module in stage)
    store = build_package_store(settings)
    opening = store.open_layer(settings.packages, target, project=project, constraints=constraints)
    async with opening as layer:
        return layer.lines if hashes else layer.pins


@dataclass(frozen=True, slots=True)
class EquippedBackend:
    """See `assay.contracts.ports.SandboxBackend`; a caller's packages and hosts are added."""

    backend: SandboxBackend
    equipment: SandboxSpec

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def isolation(self) -> Isolation:
        return self.backend.isolation

    @property
    def trouble(self) -> str:
        return trouble_of(self.backend)

    def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AbstractAsyncContextManager[Sandbox]:
        return self.backend.open_sandbox(limits, both(self.equipment, equipment))


def both(one: SandboxSpec, other: SandboxSpec) -> SandboxSpec:
    """Merge two specs without duplicates; the layer of the second one wins."""
    return SandboxSpec(
        packages=tuple(dict.fromkeys((*one.packages, *other.packages))),
        hosts=tuple(dict.fromkeys((*one.hosts, *other.hosts))),
        layer=other.layer or one.layer,
        project=other.project or one.project,
    )
