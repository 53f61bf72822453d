"""Docker backend: every sandbox is a separate container with the native engine inside.

This side labels the results of a container's sandbox, not the container.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio

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

with require("the Docker backend", extra="docker"):
    from assay.sandbox.docker.engine import Engine, EngineError, EngineFacts, open_engine
    from assay.sandbox.docker.entrypoint import EntrypointConfig
    from assay.sandbox.docker.image import (
        SERVICE_COMMAND,
        ImageOptions,
        OpenLayer,
        PackageImages,
        ensure_image,
    )
    from assay.sandbox.docker.labels import remove_orphans
    from assay.sandbox.docker.pool import ContainerPool
    from assay.sandbox.docker.security import RUNTIME, USER_ID, ContainerPlan, walls_around
    from assay.sandbox.rpc.client_sandbox import ResultLabel

GVISOR: Final = "runsc"
_SEARCH_PATH: Final = ("/usr/local/bin", "/usr/bin", "/bin")

OnNotice = Callable[[str], None]
"""Receives a short message about a slow step that is in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerOptions:
    """The configuration of a Docker backend."""

    socket: str
    runtime: str
    """Empty: the Docker engine's default; `runsc`: gVisor."""
    image: ImageOptions
    open_layer: OpenLayer
    """Provides the packages that a sandbox requests."""
    outside: DialerFactory = field(default_factory=DirectDialer)
    """How this process connects to the hosts that a sandbox may reach."""
    preload: tuple[tuple[str, ...], ...]
    pool_size: int
    """How many processes wait in each container, per preload stage."""
    warm_containers: int
    """How many containers wait in the pool."""
    cpus: float
    max_concurrent: int

    @property
    def gvisor(self) -> bool:
        return self.runtime == GVISOR


class DockerBackend:
    """See `assay.contracts.ports.SandboxBackend`."""

    def __init__(
        self,
        options: DockerOptions,
        image: str,
        facts: EngineFacts,
        engine: Engine,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self._options = options
        self.image = image
        """The digest of the image."""
        self._cpus = min(options.cpus, float(facts.processors))
        self.name = f"docker+{options.runtime}" if options.runtime else "docker"
        self.isolation = Isolation.KERNEL if options.gvisor else Isolation.ISOLATED
        # The container cannot change these facts of a result.
        label = ResultLabel(self.name, self.isolation)
        self._pool = ContainerPool(engine, tasks, label, options.warm_containers)
        self._package_images = PackageImages(engine, image, options.preload, options.open_layer)

    async def start(self) -> None:
        """Start the first container, to find out whether containers start.

        Raises:
            IsolationUnavailableError: If none starts.
        """
        if self._options.warm_containers == 0:
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
        if equipment.packages:
            image = await self._package_images.image_with(equipment.packages)
        container = self._pool.take(self._plan(limits, image, hosts=policy is not None))
        if policy is not None:
            container.egress.open(self._options.outside.dialer(policy))
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
        if self._options.gvisor:
            raise UsageError(
                "no hosts can be allowed on gVisor: its kernel does not let every address of a "
                "network lead to the gate",
                hint="leave out the hosts, or use `docker` or `native`",
            )
        return parse_policy(equipment.hosts)

    def _plan(self, limits: Limits, image: str, *, hosts: bool = False) -> ContainerPlan:
        options = self._options
        service = EntrypointConfig(
            preload=options.preload,
            pool_size=options.pool_size,
            max_concurrent=options.max_concurrent,
            programs_as=USER_ID,
            runtime_dir=f"{RUNTIME}/engines",
            search_path=_SEARCH_PATH,
            gvisor=options.gvisor,
        )
        return ContainerPlan(
            image=image,
            argv=(*SERVICE_COMMAND, service.to_json()),
            walls=walls_around(limits, files=options.gvisor),
            cpus=self._cpus,
            runtime=options.runtime,
            gvisor=options.gvisor,
            hosts=hosts,
        )


async def check_engine(engine: Engine, options: DockerOptions) -> EngineFacts:
    """Check that a Docker engine has the required features.

    Raises:
        EngineError: If it lacks one; the hint names the fix.
    """
    facts = await engine.facts()
    if options.runtime and options.runtime not in facts.runtimes:
        raise EngineError(
            f"the Docker engine has no runtime {options.runtime!r}, only "
            f"{', '.join(facts.runtimes) or 'its own'}",
            hint="install gVisor and register it in daemon.json, see docs/reference/docker.md",
        )
    return facts


@asynccontextmanager
async def open_docker(
    options: DockerOptions, on_notice: OnNotice = lambda _: None
) -> AsyncGenerator[DockerBackend]:
    """Start the Docker backend; leaving the context ends everything that it started.

    Raises:
        MissingExtraError: If the SDK is not installed.
        IsolationUnavailableError: If there is no engine, no image, or no container starts.
    """
    async with open_engine(options.socket) as engine:
        facts = await check_engine(engine, options)
        await remove_orphans(engine)
        image = await ensure_image(engine, options.image, on_notice)
        async with open_task_group() as tasks:
            backend = DockerBackend(options, image, facts, engine, tasks)
            await backend.start()
            yield backend
