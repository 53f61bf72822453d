"""The native backend: sandboxes on this machine that start in milliseconds, isolated by Linux."""

import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import DEVNULL
from typing import Final

import anyio
import anyio.abc
from anyio import to_thread

from assay.asyncx.owned_context import open_task_group
from assay.contracts.errors import IsolationUnavailableError, SandboxUnavailableError, UsageError
from assay.contracts.execution import DEFAULT_SPEC, Isolation, Limits, SandboxSpec
from assay.contracts.ports import Sandbox
from assay.contracts.workspace import WorkspaceLayer
from assay.sandbox.native.guest.jail_spec import JailSpec, RootPlan, Tier
from assay.sandbox.native.host import registry
from assay.sandbox.native.host.engine import Engine, Workspace
from assay.sandbox.native.host.layer_files import room_of_layer
from assay.sandbox.native.host.messages import Channel
from assay.sandbox.native.host.program import installed_stages
from assay.sandbox.native.host.provision import Layers, Provisioner
from assay.sandbox.native.host.sandbox import NativeSandbox
from assay.sandbox.native.host.visible_paths import (
    INTERPRETER,
    LIBRARY,
    SOURCE,
    boot,
    build_layout,
)
from assay.sandbox.native.kernel import landlock, seccomp
from assay.sandbox.native.kernel.cgroups import ControlGroups, open_groups
from assay.sandbox.network.dial import DialerFactory, DirectDialer

_FIRST_SANDBOX_ID: Final = 1_600_000_000
_SANDBOX_IDS: Final = 1 << 16
_SAFE_LANDLOCK: Final = 6
"""The first Landlock ABI in which a program cannot signal processes outside its own domain."""
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeConfig:
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
    site_packages: Path | None = None
    """Packages of a virtual environment that replace those of this interpreter."""
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

    def __init__(self, config: NativeConfig, tasks: anyio.abc.TaskGroup) -> None:
        self._config = config
        self._tasks = tasks
        self._layout = build_layout(
            config.search_path, config.read_only, site_packages=config.site_packages
        )
        self._stages = installed_stages(config.preload)
        self._provisioner = Provisioner(
            config.packages, config.outside, self._stages, site=bool(config.site_packages)
        )
        self._turns = anyio.Semaphore(config.max_concurrent)
        self._starting = anyio.Lock()
        self._engine: Engine | None = None
        self._record: registry.EngineRecord
        self.isolation = config.least

    @asynccontextmanager
    async def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AsyncGenerator[Sandbox]:
        engine = await self.start()
        layer = equipment.layer
        bare = equipment if layer is None else replace(equipment, layer=None)
        async with AsyncExitStack() as held:
            provisioning = await held.enter_async_context(self._provisioner.provide(bare, engine))
            engine, workspace = await self._take_workspace(limits.disk_mb << 20, layer, held)
            sandbox = NativeSandbox(
                engine, self._turns, workspace, limits, provisioning, layer=layer
            )
            try:
                await sandbox.copy_layer_unless_mounted()
                yield sandbox
            finally:
                with anyio.CancelScope(shield=True):
                    await sandbox.close()

    async def _take_workspace(
        self, size_bytes: int, layer: WorkspaceLayer | None, held: AsyncExitStack
    ) -> tuple[Engine, Workspace]:
        engine = await self.start()
        try:
            return engine, await _open_workspace(engine, size_bytes, layer, held)
        except SandboxUnavailableError:
            if engine.alive:
                raise
        engine = await self.start()
        return engine, await _open_workspace(engine, size_bytes, layer, held)

    async def start(self) -> Engine:
        """Return the live engine; start an engine if there is none."""
        async with self._starting:
            if self._engine is None or not self._engine.alive:
                await self.close()
                self._engine = await self._start_best()
                self.isolation = self._engine.isolation
                await self._engine.start_pools(self._tasks)
            return self._engine

    async def close(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.close()
            # The launcher has done this, unless it was killed.
            registry.clean(self._config.runtime_dir, self._record)

    async def _start_best(self) -> Engine:
        """Start an engine with namespaces, or with Landlock if they fail and that is enough.

        In a container that holds one sandbox only, a third tier works on kernels that support
        neither.

        Raises:
            IsolationUnavailableError: If this machine cannot isolate as requested.
        """
        config = self._config
        refusal = IsolationUnavailableError("namespaces are switched off in the settings")
        if config.namespaces:
            try:
                return await self._start_engine("namespaces")
            except IsolationUnavailableError as error:
                refusal = error
        if not Isolation.RESTRICTED.satisfies(config.least):
            raise refusal
        if landlock.abi_version() >= _SAFE_LANDLOCK:
            return await self._start_engine("landlock")
        if config.alone_as is not None:
            return await self._start_engine("contained")
        raise IsolationUnavailableError(
            f"{refusal}; and Landlock, the fallback, needs Linux 6.12 or newer",
            hint=refusal.hint,
        ) from refusal

    async def _start_engine(self, tier: Tier) -> Engine:
        runtime_dir = self._config.runtime_dir
        engine_id = f"{os.getpid()}-{secrets.token_hex(4)}"
        folder = runtime_dir / engine_id
        record = registry.EngineRecord(
            engine=engine_id,
            owner=registry.mark(os.getpid()),
            launcher=None,
            since=time.time(),
            remove=(str(folder),),
        )
        registry.enter(runtime_dir, record)
        groups = open_groups(engine_id)
        record = replace(record, remove=(*groups.folders, str(folder)))
        registry.write_record(folder, record)
        owner = self._config.alone_as if tier == "contained" else None
        if owner is None and os.geteuid() == 0:
            owner = _FIRST_SANDBOX_ID + os.getpid() % _SANDBOX_IDS
        layout, jailed = self._layout, tier == "namespaces"
        if self._config.site_packages and not jailed:
            raise UsageError(
                "a virtual environment can only be mounted where sandboxes have their own root",
                hint="use `--env auto`, and see `assay doctor`",
            )
        interpreter, library = (INTERPRETER, LIBRARY) if jailed else (sys.executable, SOURCE)
        filter_program = seccomp.build_filter(
            own_namespaces=tier != "landlock", counted_memory=groups.enforcing
        )
        try:
            spec = JailSpec(
                tier=tier,
                root=layout.root if jailed else RootPlan(),
                argv=(interpreter, "-I", *boot("guest.zygote", library)),
                env=tuple((layout.env if jailed else layout.host_env).items()),
                seccomp_hex=filter_program.hex(),
                readable=(*layout.readable, *_DEVICES) if tier == "landlock" else (),
                scratch=str(_make_scratch(folder, owner, tier)),
                drop_to_id=owner,
                stages=self._stages,
                layers=self._provisioner.layers_folder() if jailed else "",
                remove=record.remove,
            )
            engine = await start_engine(spec, groups, pool_size=self._config.pool_size)
        except IsolationUnavailableError:
            registry.clean(runtime_dir, record)
            raise
        self._record = replace(record, launcher=registry.mark(engine.launcher_pid))
        registry.write_record(folder, self._record)
        return engine


async def _open_workspace(
    engine: Engine, size_bytes: int, layer: WorkspaceLayer | None, held: AsyncExitStack
) -> Workspace:
    """Open a workspace that has its layer mounted, or room for a copy of it."""
    if layer is None:
        return await engine.workspaces.take(size_bytes)
    if name := await held.enter_async_context(engine.layers.mounted(layer)):
        with suppress(SandboxUnavailableError):
            return await engine.open_workspace(size_bytes, name)
    try:
        room = await to_thread.run_sync(room_of_layer, layer.folder)
    except OSError as error:
        raise UsageError(
            f"the layer {layer.digest[:12]} cannot be read: {error.strerror}"
        ) from error
    return await engine.open_workspace(size_bytes + room)


def _make_scratch(folder: Path, owner: int | None, tier: Tier) -> Path:
    scratch = folder / "boxes"
    scratch.mkdir(mode=0o700)
    if owner is not None and tier != "contained":
        try:
            os.chown(scratch, owner, owner)
        except OSError as error:
            raise IsolationUnavailableError(
                f"root may not hand files to another user here: {error.strerror}",
                hint="run as an ordinary user",
            ) from error
        # Other users may pass through to the workspaces, but cannot list the folder.
        folder.parent.chmod(0o711)
    return scratch


async def start_engine(spec: JailSpec, groups: ControlGroups, *, pool_size: int) -> Engine:
    """Start a launcher and wait for its first zygote; later stages start on their own.

    The launcher inherits nothing of this process but a few descriptors.

    Raises:
        IsolationUnavailableError: If the kernel refuses to build the jail.
    """
    complaints = _memory_file("assay-complaints", b"")
    spec_file = _memory_file("assay-spec", spec.to_json())
    life_read, life_write = os.pipe2(os.O_CLOEXEC)
    kind = (socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pairs = [socket.socketpair(*kind) for _ in range(3 + len(spec.stages))]
    first, *others = (theirs.fileno() for _, theirs in pairs)
    passed = (life_read, first, spec_file, *others)
    try:
        try:
            launcher = await anyio.open_process(
                [sys.executable, "-I", "-S", *boot("guest.launcher"), *map(str, passed)],
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=complaints,
                cwd="/",
                env={},
                start_new_session=True,
                pass_fds=passed,
            )
        finally:
            os.close(life_read)
            os.close(spec_file)
            for _, theirs in pairs:
                theirs.close()
        layers, mounts, *zygotes = (Channel(ours) for ours, _ in pairs)
        engine = Engine(
            spec,
            groups,
            launcher=launcher,
            zygotes=zygotes,
            mounts=mounts,
            layers=layers,
            life=life_write,
            pool_size=pool_size,
        )
        try:
            await engine.await_stage(0)
        except SandboxUnavailableError as error:
            await engine.close()
            said = os.pread(complaints, 2000, 0).decode(errors="replace").strip()
            raise IsolationUnavailableError(
                f"the native sandbox did not start: {said.rpartition(chr(10))[2] or error}",
                hint="run `assay doctor` to see what this machine can isolate",
            ) from error
        except BaseException:
            with anyio.CancelScope(shield=True):
                await engine.close()
            raise
    finally:
        os.close(complaints)
    return engine


def _memory_file(name: str, content: bytes) -> int:
    descriptor = os.memfd_create(name)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


@asynccontextmanager
async def open_native(config: NativeConfig) -> AsyncGenerator[NativeBackend]:
    """Start the native backend; on leaving the context, stop everything that it started.

    Raises:
        IsolationUnavailableError: If this machine does not allow it.
        UsageError: If a path in `read_only` does not exist or cannot be visible in a jail.
    """
    async with open_task_group() as tasks:
        backend = NativeBackend(config, tasks)
        try:
            await backend.start()
            yield backend
        finally:
            with anyio.CancelScope(shield=True):
                await backend.close()
