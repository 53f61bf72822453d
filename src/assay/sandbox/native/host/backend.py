"""The native backend: sandboxes on this machine that start in milliseconds, isolated by Linux."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import DEFAULT_SPEC, Isolation, Limits, SandboxSpec
from assay.contracts.ports import Sandbox
from assay.sandbox.native.host import registry
from assay.sandbox.native.host.engine import JailPool, Workspace, WorkspacePool
from assay.sandbox.native.host.program import installed_stages
from assay.sandbox.native.host.provision import Layers, Outfitter
from assay.sandbox.native.host.sandbox import EngineState, NativeSandbox
from assay.sandbox.native.host.start import IsolationChoice, start_best
from assay.sandbox.native.host.visible_paths import Layout, build_layout
from assay.sandbox.network.dial import DialerFactory, DirectDialer


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """Configuration of one native backend."""

    least: Isolation
    """The weakest accepted isolation level."""
    namespaces: bool
    """Whether to try namespaces before Landlock."""
    preload: tuple[tuple[str, ...], ...]
    """Modules that the zygotes import, in stages; each stage adds to the one before."""
    pool_size: int
    """The number of prepared jails per stage."""
    max_concurrent: int
    read_only: tuple[Path, ...]
    """More host paths that programs may read, at the same path."""
    search_path: tuple[str, ...]
    """Folders in which to look for toolchains."""
    runtime_dir: Path
    packages: Layers
    outside: DialerFactory = field(default_factory=DirectDialer)
    """Creates the dialers that connect sandboxes to their allowed hosts."""
    alone_as: int | None = None
    """The uid of programs if this backend runs in a container that holds one sandbox only."""


class NativeBackend:
    """See `assay.contracts.ports.SandboxBackend`. A dead engine is replaced at the next opening."""

    name = "native"

    def __init__(self, options: NativeOptions, layout: Layout, tasks: anyio.abc.TaskGroup) -> None:
        self._options = options
        self._tasks = tasks
        self._layout = layout
        self._stages = installed_stages(options.preload)
        self._outfitter = Outfitter(options.packages, options.outside, self._stages)
        self._turns = anyio.Semaphore(options.max_concurrent)
        self._starting = anyio.Lock()
        self._house: EngineState | None = None
        self.isolation = options.least

    @asynccontextmanager
    async def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AsyncGenerator[Sandbox]:
        house = await self.start()
        async with self._outfitter.fit_out(equipment, house.running) as fitting:
            house, box = await self._open_box(limits)
            sandbox = NativeSandbox(house, box, limits, fitting)
            try:
                yield sandbox
            finally:
                with anyio.CancelScope(shield=True):
                    await sandbox.close()

    async def _open_box(self, limits: Limits) -> tuple[EngineState, Workspace]:
        size_bytes = limits.disk_mb << 20
        house = await self.start()
        try:
            return house, await house.shelf.take(size_bytes)
        except SandboxUnavailableError:
            if house.running.engine.alive:
                raise
        house = await self.start()
        return house, await house.shelf.take(size_bytes)

    async def start(self) -> EngineState:
        """Return the state of the live engine; start an engine if there is none."""
        async with self._starting:
            if self._house is None or not self._house.running.engine.alive:
                await self.close()
                self._house = await self._build_house()
                self.isolation = self._house.running.isolation
            return self._house

    async def close(self) -> None:
        if self._house is not None:
            house, self._house = self._house, None
            for pool in house.pools:
                pool.empty()
            await house.running.engine.close()
            for waiting in (*house.pools, house.shelf):
                waiting.wake()
            # The launcher has done this, unless it was killed.
            registry.clean(self._options.runtime_dir, house.running.record)

    async def _build_house(self) -> EngineState:
        options = self._options
        running = await start_best(
            self._layout,
            self._stages,
            options.runtime_dir,
            IsolationChoice(
                least=options.least,
                namespaces=options.namespaces,
                alone_as=options.alone_as,
                layers=self._outfitter.layers_folder(),
            ),
        )

        pools = tuple(
            JailPool(running.engine, stage, options.pool_size)
            for stage in range(1 + len(self._stages))
        )
        shelf = WorkspacePool(running.engine, Limits().disk_mb << 20)
        with suppress(SandboxUnavailableError):
            await shelf.fill()
        self._tasks.start_soon(running.engine.bury_the_dead)
        self._tasks.start_soon(shelf.keep_filled)
        for pool in pools:
            self._tasks.start_soon(pool.keep_filled)
        return EngineState(
            running=running, pools=pools, shelf=shelf, stages=self._stages, turns=self._turns
        )


@asynccontextmanager
async def open_native(options: NativeOptions) -> AsyncGenerator[NativeBackend]:
    """Start the native backend; on leaving the context, stop everything that it started.

    Raises:
        IsolationUnavailableError: If this machine does not allow it.
        UsageError: If a path in `read_only` does not exist or cannot be visible in a jail.
    """
    layout = build_layout(options.search_path, options.read_only)
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        backend = NativeBackend(options, layout, tasks)
        try:
            await backend.start()
            yield backend
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            failure = error
        finally:
            with anyio.CancelScope(shield=True):
                await backend.close()
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
