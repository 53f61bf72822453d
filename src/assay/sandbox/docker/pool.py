"""Containers that serve: each has a task for its life, and a few wait ready ahead of need."""

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
from assay.sandbox.rpc.egress_server import Outlet
from assay.sandbox.rpc.stream_client import open_relay

_GREETING_S: Final = 120.0
_STARTS_AT_ONCE: Final = 4
_HOLD_BACK_S: Final = 0.05


class WarmContainer:
    """One container and the connection to its service, from the start to the end."""

    def __init__(self, plan: ContainerPlan) -> None:
        self.plan = plan
        self.outlet = Outlet()
        """The way to hosts, which is closed at first."""
        self._ready = anyio.Event()
        self._released = anyio.Event()
        self._dead = anyio.Event()
        self._far: FarBackend | None = None
        self._failure: AssayError | None = None

    @property
    def well(self) -> bool:
        """Whether it serves or is about to, as far as is known."""
        return self._failure is None and not self._dead.is_set()

    async def live(self, engine: Engine, turns: anyio.CapacityLimiter) -> None:
        """Run for the life of the container; raises nothing of its own."""
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
        """Wait until the service in it answers.

        Raises:
            SandboxUnavailableError: If it never will.
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
        """Have the container killed; when this returns, nothing in it runs."""
        self._released.set()
        await self._dead.wait()


def _open_relay(container: Container, outlet: Outlet) -> AbstractAsyncContextManager[FarBackend]:
    return open_relay(container.stream, greeting_s=_GREETING_S, answer_back=outlet.answer)


async def _end(engine: Engine, container: Container) -> None:
    await container.stream.aclose()
    try:
        await engine.kill(container.id)
    except EngineError:
        # Most likely it has ended by itself; if not, removing it ends it too.
        await _remove(engine, container.id)


async def _remove(engine: Engine, container: str) -> None:
    try:
        await engine.remove(container)
    except EngineError:
        return  # an engine that is gone has taken its containers along


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFactory:
    """What guests are made with."""

    engine: Engine
    tasks: anyio.abc.TaskGroup
    turns: anyio.CapacityLimiter


def build_lobby(engine: Engine, tasks: anyio.abc.TaskGroup) -> ContainerFactory:
    """Bring together what guests are made with."""
    return ContainerFactory(
        engine=engine, tasks=tasks, turns=anyio.CapacityLimiter(_STARTS_AT_ONCE)
    )


class ContainerPool:
    """Guests that wait. They are of the kind asked for last: more of the same tend to follow."""

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
        """Return a guest, waiting already or just on its way."""
        self._kind = plan
        fitting = [guest for guest in self._waiting if guest.plan == plan and guest.well]
        guest = fitting[0] if fitting else self.invite(plan)
        self._waiting = [other for other in self._waiting if other is not guest]
        self._wanted.set()
        return guest

    def prepare(self, plan: ContainerPlan) -> WarmContainer:
        """Have the first one on its way, to see whether there can be any."""
        self._kind = plan
        guest = self.invite(plan)
        self._waiting.append(guest)
        return guest

    async def keep_filled(self) -> None:
        """Run for the life of the backend."""
        while True:
            self._wanted = anyio.Event()
            await self._wanted.wait()
            # Whoever asked has a program to run; starting a container now would slow it down.
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
