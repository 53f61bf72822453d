"""One native sandbox: a workspace for its files, a new jail for each execution."""

import errno
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import (
    BlockedConnection,
    ExecutionResult,
    FileInfo,
    Limits,
    Program,
    Reason,
    Timings,
)
from assay.contracts.ports import Interpreter, OnOutput, ignore_output
from assay.sandbox.native.guest.jail_mounts import BOX_FOLDERS
from assay.sandbox.native.guest.jail_plan import TEMPORARY, WORKSPACE, Tier
from assay.sandbox.native.host.branch import CellRun
from assay.sandbox.native.host.engine import JailPool, Workspace, WorkspacePool, await_readiness
from assay.sandbox.native.host.files import WorkspaceFiles, disk_use
from assay.sandbox.native.host.interpreter import InterpreterDeps, NativeInterpreter, Session
from assay.sandbox.native.host.jail import Jail
from assay.sandbox.native.host.program import (
    JailPaths,
    Stages,
    encode_opening,
    encode_request,
    suitable_stage,
)
from assay.sandbox.native.host.provision import NOTHING, Provisioning
from assay.sandbox.native.host.start import RunningEngine
from assay.sandbox.native.host.supervisor import RawResult, ResultInputs, Supervision, conclude
from assay.sandbox.native.host.usage_monitor import (
    ContainedWatch,
    GroupAndDiskWatch,
    GroupWatch,
    ProcessWatch,
    Watch,
    count_processes,
)
from assay.sandbox.native.kernel import libc
from assay.sandbox.native.kernel.open_files import TOO_FEW_HINT
from assay.sandbox.network.proxy import EgressProxy, open_gate

_T = TypeVar("_T")
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """State that all sandboxes of one engine share."""

    running: RunningEngine
    pools: tuple[JailPool, ...]
    shelf: WorkspacePool
    stages: Stages
    turns: anyio.Semaphore


def _limit(cell: Jail, limits: Limits) -> None:
    try:
        most = limits.processes + cell.own_tasks
        cell.group.apply(memory_bytes=limits.memory_mb << 20, processes=most)
    except OSError as error:
        raise SandboxUnavailableError(
            f"the control group of the sandbox cannot be used: {error.strerror}",
            dispatch="never_started",
            hint=TOO_FEW_HINT if error.errno in _NO_DESCRIPTORS else "",
        ) from error


def places_of(tier: Tier, folder: Path | None) -> tuple[Path, ...]:
    """Return the folders whose size the supervisor limits, if no file system does."""
    if tier == "contained":
        return Path(WORKSPACE), Path(TEMPORARY), Path("/dev/shm")
    return () if folder is None else (folder,)


class NativeSandbox:
    """See `assay.contracts.ports.Sandbox`."""

    def __init__(
        self, house: EngineState, box: Workspace, limits: Limits, fitting: Provisioning = NOTHING
    ) -> None:
        self.limits = limits
        self._house = house
        self._fitting = fitting
        self._engine = house.running.engine
        self._box = box.name
        self._workspace = box.workspace
        self._folder = (
            house.running.scratch / box.name if house.running.tier == "landlock" else None
        )
        self._places = places_of(house.running.tier, self._folder)
        self._files = WorkspaceFiles(
            box.workspace, act_as=house.running.box_owner, room=self._room_on_host
        )
        self._running: set[Supervision | CellRun] = set()
        self._interpreters: set[Jail] = set()
        self._file_operations = 0
        self._idle = anyio.Event()
        self._idle.set()
        self._open = True

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        limits = self._limits_for(program)
        request = encode_request(program, limits, self._setting())
        arrived = time.perf_counter()
        async with self._house.turns:
            served = time.perf_counter()
            cell = await self._prepare(suitable_stage(program, self._house.stages), limits)
            prepared = time.perf_counter()
            started = False
            try:
                supervision = Supervision(cell, limits, self._watch(cell, limits), on_output)
                with self._tracked(supervision):
                    started = True
                    follow = self._follow(supervision, cell, request, program.stdin)
                    ending, denials = await follow
                usage = cell.group.usage()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                raise SandboxUnavailableError(
                    f"out of descriptors: {error}",
                    dispatch="outcome_unknown" if started else "never_started",
                    hint=TOO_FEW_HINT,
                ) from error
            finally:
                self._engine.discard(cell)
        timings = Timings(
            queue_s=served - arrived, prepare_s=prepared - served, run_s=ending.duration_s
        )
        evidence = ResultInputs(
            ending=ending,
            usage=usage,
            limits=limits,
            disk_full=self._is_full(),
            timings=timings,
            isolation=self._house.running.isolation,
            denials=denials,
        )
        return conclude(evidence)

    async def _follow(
        self, supervision: Supervision, cell: Jail, request: bytes, stdin: bytes
    ) -> tuple[RawResult, tuple[BlockedConnection, ...]]:
        if self._fitting.egress is None:
            return await supervision.run(request, stdin), ()
        async with open_gate(self._fitting.egress, cell.listeners) as gate:
            ending = await supervision.run(request, stdin)
        return ending, gate.take_denials()

    @contextmanager
    def _tracked(self, execution: Supervision | CellRun) -> Generator[None]:
        """Register an execution, so that `cancel` and `close` end it."""
        self._running.add(execution)
        self._be_busy()
        try:
            yield
        finally:
            self._running.discard(execution)
            self._say_if_idle()

    async def _in_a_thread(self, operate: Callable[[], _T]) -> _T:
        """Run a file operation in a thread; `close` waits for it."""
        self._check_open()
        self._file_operations += 1
        self._be_busy()
        try:
            return await anyio.to_thread.run_sync(operate)
        finally:
            self._file_operations -= 1
            self._say_if_idle()

    def _be_busy(self) -> None:
        if self._idle.is_set():
            self._idle = anyio.Event()

    def _say_if_idle(self) -> None:
        if not self._running and not self._file_operations:
            self._idle.set()

    def _limits_for(self, program: Program) -> Limits:
        if program.timeout_s is None or program.timeout_s >= self.limits.wall_s:
            return self.limits
        return replace(self.limits, wall_s=program.timeout_s)

    async def _prepare(self, stage: int, limits: Limits) -> Jail:
        """Take a jail of a stage, or of the highest ready stage below it."""
        self._check_open()
        cell = await self._take_cell(stage)
        try:
            _limit(cell, limits)
            # A jail that is still being prepared continues meanwhile.
            await self._engine.bind(self._box, cell)
            await await_readiness(cell)
            self._check_open()
        except BaseException:
            self._engine.discard(cell)
            raise
        return cell

    async def _take_cell(self, wanted: int) -> Jail:
        pools = self._house.pools
        stage = max(number for number in range(wanted + 1) if pools[number].ready)
        if self._fitting is NOTHING:
            return await pools[stage].take()
        # Jails from the pool have neither packages nor a network.
        return await self._engine.make_cell(stage, ahead=False, fit=self._fitting.fit)

    def _watch(self, cell: Jail, limits: Limits) -> Watch:
        running = self._house.running
        if running.groups.enforcing:
            if not self._places:
                return GroupWatch(cell)
            return GroupAndDiskWatch(cell, self._places, act_as=running.box_owner)
        watch = ContainedWatch if running.tier == "contained" else ProcessWatch
        return watch(
            cell,
            limits.memory_mb << 20,
            self._places,
            processes=limits.processes,
            act_as=running.box_owner,
            files=self._workspace if running.tier == "namespaces" else None,
        )

    def _setting(self) -> JailPaths:
        enforced = self._house.running.groups.enforcing
        if self._folder is None:
            return JailPaths(
                workspace=WORKSPACE,
                temporary=TEMPORARY,
                packages=self._fitting.packages,
                groups_enforce=enforced,
            )
        workspace, temporary = (str(self._folder / name) for name in BOX_FOLDERS)
        return JailPaths(
            workspace=workspace,
            temporary=temporary,
            writable=(workspace, temporary, "/dev/null", "/dev/zero", "/dev/full"),
            packages=self._fitting.packages,
            groups_enforce=enforced,
            processes_elsewhere=count_processes(self._house.running.box_owner or os.getuid()),
        )

    def _is_full(self) -> bool:
        if self._places:
            return self._disk_use() >= self.limits.disk_mb << 20
        space = os.fstatvfs(self._workspace)
        return space.f_bfree == 0 or space.f_ffree == 0

    def _room_on_host(self) -> int | None:
        if not self._places:
            return None
        return (self.limits.disk_mb << 20) - self._disk_use()

    def _disk_use(self) -> int:
        with libc.file_access_as(self._house.running.box_owner):
            return sum(disk_use(place) for place in self._places)

    def _check_open(self) -> None:
        if not self._open:
            raise SandboxUnavailableError("the sandbox is closed", dispatch="never_started")

    @asynccontextmanager
    async def open_interpreter(self) -> AsyncGenerator[Interpreter]:
        cell = await self._prepare(len(self._house.stages), self.limits)
        self._interpreters.add(cell)
        try:
            async with self._open_gate(cell) as gate:
                session = Session(self._premises(cell, gate))
                try:
                    await session.start(encode_opening(self.limits, self._setting()))
                    interpreter = NativeInterpreter(session, await session.open_line())
                    try:
                        yield interpreter
                    finally:
                        with anyio.CancelScope(shield=True):
                            await interpreter.close()
                finally:
                    session.orders.close()
        finally:
            self._end_interpreter(cell)

    def _open_gate(self, cell: Jail) -> AbstractAsyncContextManager[EgressProxy | None]:
        if self._fitting.egress is None:
            return nullcontext()
        return open_gate(self._fitting.egress, cell.listeners)

    def _premises(self, cell: Jail, gate: EgressProxy | None) -> InterpreterDeps:
        return InterpreterDeps(
            denied=gate.take_denials if gate else tuple,
            cell=cell,
            limits=self.limits,
            watch=self._watch(cell, self.limits),
            turns=self._house.turns,
            isolation=self._house.running.isolation,
            is_full=self._is_full,
            tracked=self._tracked,
            check_open=self._check_open,
        )

    def _end_interpreter(self, cell: Jail) -> None:
        if cell in self._interpreters:
            self._interpreters.discard(cell)
            self._engine.discard(cell)

    async def cancel(self) -> None:
        for supervision in tuple(self._running):
            supervision.kill(Reason.CANCELLED)

    async def close(self) -> None:
        """End all executions, then release the workspace."""
        self._open = False
        while self._running or self._file_operations:
            await self.cancel()
            await self._idle.wait()
        for cell in tuple(self._interpreters):
            self._end_interpreter(cell)
        os.close(self._workspace)
        await self._engine.close_box(self._box)

    async def write_file(
        self, path: PurePosixPath, content: bytes, *, executable: bool = False
    ) -> None:
        write = partial(self._files.write, path, content, executable=executable)
        await self._in_a_thread(write)

    async def read_file(self, path: PurePosixPath, *, max_bytes: int = 64 << 20) -> bytes:
        return await self._in_a_thread(partial(self._files.read, path, max_bytes=max_bytes))

    async def list_files(self, path: PurePosixPath = PurePosixPath()) -> tuple[FileInfo, ...]:
        return await self._in_a_thread(partial(self._files.list_below, path))

    async def make_directory(self, path: PurePosixPath) -> None:
        await self._in_a_thread(partial(self._files.make_directory, path))

    async def remove_path(self, path: PurePosixPath) -> None:
        await self._in_a_thread(partial(self._files.remove, path))
