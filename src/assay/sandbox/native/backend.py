"""The native backend: sandboxes on this machine in milliseconds, kept apart by the kernel."""

import os
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import Isolation, Limits
from assay.contracts.ports import Sandbox
from assay.sandbox.native import seccomp
from assay.sandbox.native.cell import Cell
from assay.sandbox.native.cgroups import ControlGroups, open_groups
from assay.sandbox.native.engine import Engine
from assay.sandbox.native.launch import start_engine
from assay.sandbox.native.layout import INTERPRETER, LIBRARY, Layout, build_layout
from assay.sandbox.native.plan import WORKSPACE, JailPlan
from assay.sandbox.native.pool import CellPool
from assay.sandbox.native.request import Setting
from assay.sandbox.native.sandbox import House, NativeSandbox
from assay.sandbox.native.stages import Stages, installed_stages

_FIRST_SANDBOX_ID = 1_600_000_000
_SANDBOX_IDS = 1 << 16
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from assay.sandbox.native.zygote import main; "
    "sys.path.pop(0); main(*map(int, sys.argv[1:]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """How one native backend is set up."""

    preload: tuple[tuple[str, ...], ...] = ()
    """Modules that programs find already imported, in stages of growing weight."""
    pool_size: int = 3
    """How many cells wait ready, per stage."""
    max_concurrent: int = 32
    read_only: tuple[Path, ...] = ()
    """More of the host that programs may read, at the same path."""


class NativeBackend:
    """See `assay.contracts.ports.SandboxBackend`. A dead engine is replaced at the next opening."""

    name = "native"
    isolation = Isolation.ISOLATED

    def __init__(self, options: NativeOptions, tasks: anyio.abc.TaskGroup) -> None:
        self._options = options
        self._tasks = tasks
        self._layout = build_layout(options.read_only)
        self._turns = anyio.Semaphore(options.max_concurrent)
        self._starting = anyio.Lock()
        self._house: House | None = None

    @asynccontextmanager
    async def open_sandbox(self, limits: Limits) -> AsyncGenerator[Sandbox]:
        house = await self.start()
        try:
            box, workspace = await house.engine.open_box(limits.disk_mb << 20)
        except SandboxUnavailableError:
            if house.engine.alive:
                raise
            house = await self.start()
            box, workspace = await house.engine.open_box(limits.disk_mb << 20)
        sandbox = NativeSandbox(house, box, workspace, limits)
        try:
            yield sandbox
        finally:
            with anyio.CancelScope(shield=True):
                await sandbox.close()

    async def start(self) -> House:
        """Return the living house, building one if there is none."""
        async with self._starting:
            if self._house is None or not self._house.engine.alive:
                await self.close()
                self._house = await self._build_house()
            return self._house

    async def close(self) -> None:
        if self._house is not None:
            house, self._house = self._house, None
            for pool in house.pools:
                pool.empty()
            await house.engine.close()

    async def _build_house(self) -> House:
        groups = open_groups(f"{os.getpid()}-{secrets.token_hex(4)}")
        owner = _FIRST_SANDBOX_ID + os.getpid() % _SANDBOX_IDS if os.geteuid() == 0 else None
        stages = installed_stages(self._options.preload)
        plan = _plan(self._layout, stages, groups, owner)
        engine = await start_engine(plan, groups)

        def discard(cell: Cell) -> None:
            cell.kill()
            self._tasks.start_soon(engine.bury, cell)

        size = self._options.pool_size
        pools = tuple(CellPool(engine, n, size, discard) for n in range(1 + len(stages)))
        for pool in pools:
            self._tasks.start_soon(pool.keep_filled)
        return House(
            engine=engine,
            pools=pools,
            stages=stages,
            turns=self._turns,
            discard=discard,
            setting=Setting(workspace=WORKSPACE, enforcing_groups=groups.enforcing),
            isolation=self.isolation,
            box_owner=owner,
        )


def _plan(layout: Layout, stages: Stages, groups: ControlGroups, owner: int | None) -> JailPlan:
    return JailPlan(
        tier="namespaces",
        drop_to_id=owner,
        root=layout.root,
        argv=(INTERPRETER, "-I", "-c", _BOOT, LIBRARY),
        env=tuple(layout.env.items()),
        stages=tuple(tuple(stage) for stage in stages),
        seccomp_hex=seccomp.build_filter().hex(),
        proc=True,
        scratch="",
        remove=groups.folders,
    )


@asynccontextmanager
async def open_native(options: NativeOptions) -> AsyncGenerator[NativeBackend]:
    """Start the native backend; leaving the context ends everything it has started.

    Raises:
        IsolationUnavailableError: If this machine does not allow it.
    """
    async with anyio.create_task_group() as tasks:
        backend = NativeBackend(options, tasks)
        try:
            await backend.start()
            yield backend
        finally:
            with anyio.CancelScope(shield=True):
                await backend.close()
            tasks.cancel_scope.cancel()
