"""Docker backend: every sandbox is a separate container with the native engine inside.

This side labels the results of a container's sandbox, not the container.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import anyio.abc
from anyio import to_thread

from assay.asyncx.owned_context import open_task_group
from assay.contracts.errors import (
    IsolationUnavailableError,
    SandboxUnavailableError,
    UsageError,
    require,
)
from assay.contracts.execution import (
    DEFAULT_SPEC,
    Isolation,
    Limits,
    SandboxSpec,
)
from assay.contracts.ports import Sandbox
from assay.sandbox.network.dial import DialerFactory, DirectDialer
from assay.sandbox.network.policy import Policy, parse_policy
from assay.sandbox.packages.store import PackageStore
from assay.settings.load import SandboxSettings

with require("the Docker backend", extra="docker"):
    from assay.sandbox.docker.engine import Engine, EngineError, open_engine
    from assay.sandbox.docker.entrypoint import EntrypointConfig
    from assay.sandbox.docker.image import (
        SERVICE_COMMAND,
        OnNotice,
        PackageImages,
        ensure_image,
    )
    from assay.sandbox.docker.labels import remove_orphans
    from assay.sandbox.docker.pool import ContainerPool
    from assay.sandbox.docker.security import (
        GVISOR,
        LAYERS,
        LAYERS_MB,
        RUNTIME,
        USER_ID,
        ContainerPlan,
        caps_for,
    )
    from assay.sandbox.rpc.client_sandbox import ResultLabel
    from assay.sandbox.rpc.layer_manifest import layer_size_mb

_SEARCH_PATH: Final = ("/usr/local/bin", "/usr/bin", "/bin")


class DockerBackend:
    """See `assay.contracts.ports.SandboxBackend`."""

    def __init__(
        self,
        settings: SandboxSettings,
        engine: Engine,
        tasks: anyio.abc.TaskGroup,
        *,
        image: str,
        cpus: float,
        gvisor: bool,
        store: PackageStore,
        outside: DialerFactory,
    ) -> None:
        self.image = image
        """The digest of the image."""
        self._settings = settings
        self._cpus = cpus
        self._gvisor = gvisor
        self._outside = outside
        # Every container imports separately, so only the first stage.
        self._preload = settings.preload[:1]
        self.name = f"docker+{GVISOR}" if gvisor else "docker"
        self.isolation = Isolation.KERNEL if gvisor else Isolation.ISOLATED
        # The container cannot change these facts of a result.
        label = ResultLabel(self.name, self.isolation)
        self._pool = ContainerPool(engine, tasks, label, settings.docker.warm_containers)
        modules = tuple(module for stage in self._preload for module in stage)
        self._package_images = PackageImages(engine, image, modules, store)

    async def start(self) -> None:
        """Start the first container, to find out whether containers start.

        Raises:
            IsolationUnavailableError: If none starts.
        """
        if self._settings.docker.warm_containers == 0:
            return  # The pool keeps no warm containers.
        try:
            await self._pool.prepare(self._plan(Limits(), self.image))
        except SandboxUnavailableError as error:
            raise IsolationUnavailableError(str(error), hint=error.hint) from error

    @asynccontextmanager
    async def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AsyncGenerator[Sandbox]:
        policy = self._policy(equipment)
        image = self.image
        if equipment.packages or equipment.project:
            image = await self._package_images.image_with(equipment)
        layer_mb = 0
        if equipment.layer is not None:
            layer_mb = await to_thread.run_sync(layer_size_mb, equipment.layer)
        plan = self._plan(limits, image, hosts=policy is not None, layer_mb=layer_mb)
        container = self._pool.take(plan)
        if policy is not None:
            container.egress.open(self._outside.dialer(policy))
        try:
            inner = await container.serving()
            async with inner.open_sandbox(limits, equipment) as sandbox:
                try:
                    yield sandbox
                finally:
                    # Before the request to close the sandbox: this is faster, and cannot hang.
                    with anyio.CancelScope(shield=True):
                        await container.end()
        finally:
            with anyio.CancelScope(shield=True):
                await container.end()

    def _policy(self, equipment: SandboxSpec) -> Policy | None:
        if not equipment.hosts:
            return None
        if self._gvisor:
            raise UsageError(
                "no hosts can be allowed on gVisor: its kernel does not let every address of a "
                "network lead to the gate",
                hint="leave out the hosts, or use `docker` or `native`",
            )
        return parse_policy(equipment.hosts)

    def _plan(
        self, limits: Limits, image: str, *, hosts: bool = False, layer_mb: int = 0
    ) -> ContainerPlan:
        service = EntrypointConfig(
            preload=self._preload,
            # One prepared worker is enough for the programs of one sandbox.
            pool_size=min(self._settings.pool_size, 1),
            max_concurrent=self._settings.max_concurrent,
            programs_as=USER_ID,
            runtime_dir=f"{RUNTIME}/engines",
            layers_dir=LAYERS,
            layers_mb=LAYERS_MB,
            search_path=_SEARCH_PATH,
            gvisor=self._gvisor,
        )
        return ContainerPlan(
            image=image,
            argv=(*SERVICE_COMMAND, service.to_json()),
            caps=caps_for(limits, files=self._gvisor, layer_mb=layer_mb),
            cpus=self._cpus,
            runtime=GVISOR if self._gvisor else "",
            hosts=hosts,
        )


@asynccontextmanager
async def open_docker(
    settings: SandboxSettings,
    store: PackageStore,
    *,
    gvisor: bool,
    outside: DialerFactory | None = None,
    on_notice: OnNotice = lambda _: None,
) -> AsyncGenerator[DockerBackend]:
    """Start the Docker backend; leaving the context ends everything that it started.

    `store` provides the packages of the image and of sandboxes. `outside` connects to the hosts
    that a sandbox may reach.

    Raises:
        MissingExtraError: If the SDK is not installed.
        IsolationUnavailableError: If there is no engine, no image, or no container starts.
    """
    async with open_engine(settings.docker.socket) as engine:
        facts = await engine.facts()
        if gvisor and GVISOR not in facts.runtimes:
            raise EngineError(
                f"the Docker engine has no runtime {GVISOR!r}, only "
                f"{', '.join(facts.runtimes) or 'its own'}",
                hint="install gVisor and register it in daemon.json, see docs/reference/docker.md",
            )
        await remove_orphans(engine)
        image = await ensure_image(engine, settings, store, on_notice)
        async with open_task_group() as tasks:
            backend = DockerBackend(
                settings,
                engine,
                tasks,
                image=image,
                cpus=min(settings.docker.cpus, float(facts.processors)),
                gvisor=gvisor,
                store=store,
                outside=outside or DirectDialer(),
            )
            await backend.start()
            yield backend
