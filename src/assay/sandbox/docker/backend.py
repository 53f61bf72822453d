"""Docker backend: every sandbox is a separate container with the native engine inside.

This side labels the results of a container's sandbox, not the container.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

import anyio

from assay.contracts.errors import (
    IsolationUnavailableError,
    SandboxUnavailableError,
    UsageError,
    require,
)
from assay.contracts.execution import (
    DEFAULT_SPEC,
    CellResult,
    ExecutionResult,
    FileInfo,
    Isolation,
    Limits,
    Program,
    SandboxSpec,
)
from assay.contracts.ports import Interpreter, OnOutput, Sandbox, ignore_output
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
    from assay.sandbox.docker.pool import ContainerFactory, ContainerPool, build_lobby
    from assay.sandbox.docker.security import RUNTIME, USER_ID, ContainerPlan, walls_around

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
        self, options: DockerOptions, image: str, facts: EngineFacts, lobby: ContainerFactory
    ) -> None:
        self._options = options
        self.image = image
        """The digest of the image."""
        self._cpus = min(options.cpus, float(facts.processors))
        self._spares = ContainerPool(lobby, options.warm_containers)
        self._tasks = lobby.tasks
        self.name = f"docker+{options.runtime}" if options.runtime else "docker"
        self.isolation = Isolation.KERNEL if options.gvisor else Isolation.ISOLATED
        self._shop = PackageImages(lobby.engine, image, options.preload, options.open_layer)
        self._seal = ResultLabel(backend=self.name, isolation=self.isolation)

    async def start(self) -> None:
        """Start the first container, to find out whether containers start.

        Raises:
            IsolationUnavailableError: If none starts.
        """
        if self._options.warm_containers == 0:
            return  # The pool keeps no warm containers.
        guest = self._spares.prepare(self._plan(Limits(), self.image))
        try:
            await guest.serving()
        except SandboxUnavailableError as error:
            raise IsolationUnavailableError(str(error), hint=error.hint) from error
        self._tasks.start_soon(self._spares.keep_filled)

    @asynccontextmanager
    async def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AsyncGenerator[Sandbox]:
        policy = self._policy(equipment)
        image = self.image
        if equipment.packages:
            image = await self._shop.image_with(equipment.packages)
        guest = self._spares.take(self._plan(limits, image, hosts=policy is not None))
        if policy is not None:
            guest.outlet.open(self._options.outside.dialer(policy))
        try:
            far = await guest.serving()
            async with far.open_sandbox(limits, equipment) as sandbox:
                try:
                    yield DockerSandbox(sandbox, self._seal)
                finally:
                    # Before the request to close the sandbox: this is faster, and cannot hang.
                    with anyio.CancelScope(shield=True):
                        await guest.end()
        finally:
            with anyio.CancelScope(shield=True):
                await guest.end()

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
    failure: Exception | None = None
    async with open_engine(options.socket) as engine:
        facts = await check_engine(engine, options)
        await remove_orphans(engine)
        image = await ensure_image(engine, options.image, on_notice)
        async with anyio.create_task_group() as tasks:
            backend = DockerBackend(options, image, facts, build_lobby(engine, tasks))
            try:
                await backend.start()
                yield backend
            except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
                failure = error
            finally:
                tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLabel:
    """The backend facts of every result, which the container cannot change."""

    backend: str
    isolation: Isolation

    def on(self, result: ExecutionResult) -> ExecutionResult:
        return replace(result, backend=self.backend, isolation=self.isolation)


class DockerSandbox:
    """See `assay.contracts.ports.Sandbox`."""

    def __init__(self, far: Sandbox, seal: ResultLabel) -> None:
        self._far = far
        self._seal = seal

    @property
    def limits(self) -> Limits:
        return self._far.limits

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        return self._seal.on(await self._far.run(program, on_output=on_output))

    @asynccontextmanager
    async def open_interpreter(self) -> AsyncGenerator[Interpreter]:
        async with self._far.open_interpreter() as interpreter:
            yield DockerInterpreter(interpreter, self._seal)

    async def cancel(self) -> None:
        await self._far.cancel()

    async def write_file(
        self, path: PurePosixPath, content: bytes, *, executable: bool = False
    ) -> None:
        await self._far.write_file(path, content, executable=executable)

    async def read_file(self, path: PurePosixPath, *, max_bytes: int = 64 << 20) -> bytes:
        return await self._far.read_file(path, max_bytes=max_bytes)

    async def list_files(self, path: PurePosixPath = PurePosixPath()) -> tuple[FileInfo, ...]:
        return await self._far.list_files(path)

    async def make_directory(self, path: PurePosixPath) -> None:
        await self._far.make_directory(path)

    async def remove_path(self, path: PurePosixPath) -> None:
        await self._far.remove_path(path)


class DockerInterpreter:
    """See `assay.contracts.ports.Interpreter`."""

    def __init__(self, far: Interpreter, seal: ResultLabel) -> None:
        self._far = far
        self._seal = seal

    async def run_cell(
        self, source: str, *, timeout_s: float | None = None, on_output: OnOutput = ignore_output
    ) -> CellResult:
        result = await self._far.run_cell(source, timeout_s=timeout_s, on_output=on_output)
        return replace(result, execution=self._seal.on(result.execution))

    async def interrupt(self) -> None:
        await self._far.interrupt()

    @asynccontextmanager
    async def branch(self) -> AsyncGenerator[Interpreter]:
        async with self._far.branch() as copy:
            yield DockerInterpreter(copy, self._seal)
