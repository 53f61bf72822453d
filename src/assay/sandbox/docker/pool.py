"""Pool of containers: a task runs each container, and a few wait in advance."""

from contextlib import suppress
from typing import Final

import anyio
import anyio.abc

from assay.contracts.errors import AssayError, SandboxUnavailableError
from assay.sandbox.docker.container import Container, start_container
from assay.sandbox.docker.engine import Engine, EngineError
from assay.sandbox.docker.security import ContainerPlan, container_config
from assay.sandbox.rpc.client_sandbox import ResultLabel, RpcBackend
from assay.sandbox.rpc.stream_client import EgressServer, open_relay

_GREETING_S: Final = 120.0
_STARTS_AT_ONCE: Final = 4
_HOLD_BACK_S: Final = 0.05


class WarmContainer:
    """One container and the connection to its service, from start to end."""

    def __init__(self, plan: ContainerPlan) -> None:
        self.plan = plan
        self.egress = EgressServer()
        """The egress server of the sandbox; closed at first."""
        self._ready = anyio.Event()
        self._released = anyio.Event()
        self._dead = anyio.Event()
        self._backend: RpcBackend | None = None
        self._failure: AssayError | None = None

    @property
    def well(self) -> bool:
        """Whether the container serves or starts, as far as is known."""
        return self._failure is None and not self._dead.is_set()

    async def live(self, engine: Engine, turns: anyio.CapacityLimiter, label: ResultLabel) -> None:
        """Run the container until its end; never raises."""
        try:
            async with turns:
                container = await start_container(engine, container_config(self.plan))
        except EngineError as error:
            self._failure = SandboxUnavailableError(
                str(error), dispatch="never_started", hint=error.hint
            )
        else:
            try:
                await self._serve(container, label)
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(engine, container)
        finally:
            self._dead.set()
            self._ready.set()

    async def _serve(self, container: Container, label: ResultLabel) -> None:
        try:
            async with open_relay(
                container.stream,
                greeting_s=_GREETING_S,
                answer_back=self.egress.answer,
                label=label,
            ) as self._backend:
                self._ready.set()
                await self._released.wait()
        except AssayError as error:
            told = container.stream.complaints.rpartition("\n")[2]
            self._failure = SandboxUnavailableError(
                f"the container did not start: {told or error}", dispatch="never_started"
            )

    async def serving(self) -> RpcBackend:
        """Wait until the service in the container answers.

        Raises:
            SandboxUnavailableError: If it never answers.
        """
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure
        if self._backend is None:
            raise SandboxUnavailableError("the backend is closed", dispatch="never_started")
        return self._backend

    async def end(self) -> None:
        """Kill the container; when this returns, nothing in it runs."""
        self._released.set()
        await self._dead.wait()


async def _end(engine: Engine, container: Container) -> None:
    await container.stream.aclose()
    try:
        await engine.kill(container.id)
    except EngineError:
        # It has probably ended on its own; otherwise its removal ends it. A Docker engine that is
        # gone has ended its containers too.
        with suppress(EngineError):
            await engine.remove(container.id)


class ContainerPool:
    """Warm containers for the last requested configuration, because similar requests follow."""

    def __init__(
        self, engine: Engine, tasks: anyio.abc.TaskGroup, label: ResultLabel, count: int
    ) -> None:
        self._engine = engine
        self._tasks = tasks
        self._label = label
        self._count = count
        self._turns = anyio.CapacityLimiter(_STARTS_AT_ONCE)
        self._waiting: list[WarmContainer] = []
        self._wanted = anyio.Event()
        self._plan: ContainerPlan | None = None

    def _start(self, plan: ContainerPlan) -> WarmContainer:
        container = WarmContainer(plan)
        self._tasks.start_soon(container.live, self._engine, self._turns, self._label)
        return container

    def take(self, plan: ContainerPlan) -> WarmContainer:
        """Return a warm container, or one that starts."""
        self._plan = plan
        fitting = [each for each in self._waiting if each.plan == plan and each.well]
        taken = fitting[0] if fitting else self._start(plan)
        self._waiting = [other for other in self._waiting if other is not taken]
        self._wanted.set()
        return taken

    async def prepare(self, plan: ContainerPlan) -> None:
        """Start the first container, to find out whether containers start.

        Raises:
            SandboxUnavailableError: If it does not.
        """
        self._plan = plan
        container = self._start(plan)
        self._waiting.append(container)
        await container.serving()
        self._tasks.start_soon(self._keep_filled)

    async def _keep_filled(self) -> None:
        while True:
            self._wanted = anyio.Event()
            await self._wanted.wait()
            # The last caller has a program to run; starting a container now would slow it down.
            await anyio.sleep(_HOLD_BACK_S)
            if (plan := self._plan) is None:
                continue
            keep = [each for each in self._waiting if each.plan == plan and each.well]
            leaving = [each for each in self._waiting if each not in keep]
            missing = range(len(keep), self._count)
            self._waiting = [*keep, *(self._start(plan) for _ in missing)]
            for container in leaving:
                await container.end()
