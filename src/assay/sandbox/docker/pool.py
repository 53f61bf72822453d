"""Pool of containers: a task runs each container, and a few wait in advance."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.abc

from assay.contracts.errors import AssayError, SandboxUnavailableError
from assay.sandbox.docker.container import Container, start_container
from assay.sandbox.docker.engine import Engine, EngineError
from assay.sandbox.docker.security import ContainerPlan, container_config
from assay.sandbox.rpc.client_sandbox import FarBackend
from assay.sandbox.rpc.stream_client import Outlet, open_relay

_GREETING_S: Final = 120.0
_STARTS_AT_ONCE: Final = 4
_HOLD_BACK_S: Final = 0.05


class WarmContainer:
    """One container and the connection to its service, from start to end."""

    def __init__(self, plan: ContainerPlan) -> None:
        self.plan = plan
        self.outlet = Outlet()
        """The egress server of the sandbox; closed at first."""
        self._ready = anyio.Event()
        self._released = anyio.Event()
        self._dead = anyio.Event()
        self._far: FarBackend | None = None
        self._failure: AssayError | None = None

    @property
    def well(self) -> bool:
        """Whether the container serves or starts, as far as is known."""
        return self._failure is None and not self._dead.is_set()

    async def live(self, engine: Engine, turns: anyio.CapacityLimiter) -> None:
        """Run the container until its end; never raises."""
        try:
            async with turns:
                container = await start_container(engine, container_config(self.plan))
        except EngineError as error:
            self._failure = error
        else:
            try:
                await self._serve(container)
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(engine, container)
        finally:
            self._dead.set()
            self._ready.set()

    async def _serve(self, container: Container) -> None:
        try:
            async with _open_relay(container, self.outlet) as far:
                self._far = far
                self._ready.set()
                await self._released.wait()
        except AssayError as error:
            told = container.stream.complaints.rpartition("\n")[2]
            self._failure = SandboxUnavailableError(
                f"the container did not start: {told or error}", dispatch="never_started"
            )

    async def serving(self) -> FarBackend:
        """Wait until the service in the container answers.

        Raises:
            SandboxUnavailableError: If it never answers.
        """
        await self._ready.wait()
        if isinstance(self._failure, SandboxUnavailableError):
            raise self._failure
        if self._failure is not None:
            raise SandboxUnavailableError(
                str(self._failure), dispatch="never_started", hint=self._failure.hint
            ) from self._failure
        if self._far is None:
            raise SandboxUnavailableError("the backend is closed", dispatch="never_started")
        return self._far

    async def end(self) -> None:
        """Kill the container; when this returns, nothing in it runs."""
        self._released.set()
        await self._dead.wait()


def _open_relay(container: Container, outlet: Outlet) -> AbstractAsyncContextManager[FarBackend]:
    return open_relay(container.stream, greeting_s=_GREETING_S, answer_back=outlet.answer)


async def _end(engine: Engine, container: Container) -> None:
    await container.stream.aclose()
    try:
        await engine.kill(container.id)
    except EngineError:
        # It has probably ended on its own; otherwise its removal ends it.
        await _remove(engine, container.id)


async def _remove(engine: Engine, container: str) -> None:
    try:
        await engine.remove(container)
    except EngineError:
        return  # a Docker engine that is gone has ended its containers too


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFactory:
    """The Docker engine, task group and start limit that warm containers share."""

    engine: Engine
    tasks: anyio.abc.TaskGroup
    turns: anyio.CapacityLimiter


def build_lobby(engine: Engine, tasks: anyio.abc.TaskGroup) -> ContainerFactory:
    """Create the factory with its limit of concurrent starts."""
    return ContainerFactory(
        engine=engine, tasks=tasks, turns=anyio.CapacityLimiter(_STARTS_AT_ONCE)
    )


class ContainerPool:
    """Warm containers for the last requested configuration, because similar requests follow."""

    def __init__(self, lobby: ContainerFactory, count: int) -> None:
        self._lobby = lobby
        self._count = count
        self._waiting: list[WarmContainer] = []
        self._wanted = anyio.Event()
        self._kind: ContainerPlan | None = None

    def invite(self, plan: ContainerPlan) -> WarmContainer:
        guest = WarmContainer(plan)
        self._lobby.tasks.start_soon(guest.live, self._lobby.engine, self._lobby.turns)
        return guest

    def take(self, plan: ContainerPlan) -> WarmContainer:
        """Return a warm container, or one that starts."""
        self._kind = plan
        fitting = [guest for guest in self._waiting if guest.plan == plan and guest.well]
        guest = fitting[0] if fitting else self.invite(plan)
        self._waiting = [other for other in self._waiting if other is not guest]
        self._wanted.set()
        return guest

    def prepare(self, plan: ContainerPlan) -> WarmContainer:
        """Start the first container, to find out whether containers start."""
        self._kind = plan
        guest = self.invite(plan)
        self._waiting.append(guest)
        return guest

    async def keep_filled(self) -> None:
        """Keep the pool filled for the life of the backend."""
        while True:
            self._wanted = anyio.Event()
            await self._wanted.wait()
            # The last caller has a program to run; starting a container now would slow it down.
            await anyio.sleep(_HOLD_BACK_S)
            await self._fill()

    async def _fill(self) -> None:
        plan = self._kind
        if plan is None:
            return
        keep = [guest for guest in self._waiting if guest.plan == plan and guest.well]
        leaving = [guest for guest in self._waiting if guest not in keep]
        missing = range(len(keep), self._count)
        self._waiting = [*keep, *(self.invite(plan) for _ in missing)]
        for guest in leaving:
            await guest.end()
