"""One native sandbox: a workspace for its files, a new jail for each execution and interpreter.

An interpreter is one jail with a kernel manager, and its branches. The first branch opens with the
interpreter. `branch` adds another one, which has its own pipes and shares everything else.
"""

import errno
import itertools
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import (
    CellResult,
    ExecutionResult,
    FileInfo,
    Limits,
    Program,
    PythonCode,
    Reason,
    Timings,
    WorkspaceChanges,
)
from assay.contracts.ports import Interpreter, OnOutput, ignore_output
from assay.contracts.workspace import WorkspaceLayer
from assay.sandbox.native.guest.jail_mounts import BOX_FOLDERS
from assay.sandbox.native.guest.jail_spec import TEMPORARY, WORKSPACE
from assay.sandbox.native.host.branch import BranchPipes, CellRun, Report
from assay.sandbox.native.host.engine import Engine, Workspace, await_readiness
from assay.sandbox.native.host.files import WorkspaceFiles, disk_use
from assay.sandbox.native.host.jail import Jail
from assay.sandbox.native.host.layer_files import ChangeFinder, Stamp, copy_layer
from assay.sandbox.native.host.messages import Orders, decode_answers
from assay.sandbox.native.host.program import (
    JailPaths,
    encode_opening,
    encode_request,
    suitable_stage,
)
from assay.sandbox.native.host.provision import NOTHING, Provisioning
from assay.sandbox.native.host.supervisor import ProgramRun, build_result
from assay.sandbox.native.host.usage_monitor import (
    CellWatch,
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
_CONTAINED_FOLDERS: Final = (Path(WORKSPACE), Path(TEMPORARY), Path("/dev/shm"))


class NativeSandbox:
    """See `assay.contracts.ports.Sandbox`."""

    def __init__(
        self,
        engine: Engine,
        turns: anyio.Semaphore,
        workspace: Workspace,
        limits: Limits,
        provisioning: Provisioning = NOTHING,
        *,
        layer: WorkspaceLayer | None = None,
    ) -> None:
        self.limits = limits
        copied_mb = -((limits.disk_mb << 20) - workspace.size_bytes >> 20)
        self.enforced = replace(limits, disk_mb=limits.disk_mb + copied_mb) if copied_mb else limits
        """The limits, with more disk space if the workspace holds a copy of its layer."""
        self.engine = engine
        self.turns = turns
        self._provisioning = provisioning
        self._layer = layer
        self._box = workspace.name
        self._workspace = workspace.workspace
        self._changed = workspace.changed
        self._stamps: Mapping[str, Stamp] = {}
        self._folder = engine.scratch / workspace.name if engine.tier == "landlock" else None
        self._folders: tuple[Path, ...] = () if self._folder is None else (self._folder,)
        """The folders whose size the supervisor limits, if no file system does."""
        if engine.tier == "contained":
            self._folders = _CONTAINED_FOLDERS
        self._files = WorkspaceFiles(
            workspace.workspace, act_as=engine.owner, room=self._room_on_host
        )
        self._running: set[ProgramRun | CellRun] = set()
        self._interpreters: set[Jail] = set()
        self._file_operations = 0
        self._idle = anyio.Event()
        self._idle.set()
        self._open = True

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        limits = _shorter(self.enforced, program.timeout_s)
        request = encode_request(program, limits, self._paths())
        arrived = time.perf_counter()
        async with self.turns:
            served = time.perf_counter()
            jail = await self._prepare(suitable_stage(program, self.engine.stages), limits)
            prepared = time.perf_counter()
            started = False
            try:
                run = ProgramRun(jail, limits, self.watch(jail, limits), on_output)
                with self.tracked(run):
                    started = True
                    async with self._open_proxy(jail) as proxy:
                        raw = await run.run(request, program.stdin)
                usage = jail.group.usage()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                raise SandboxUnavailableError(
                    f"out of descriptors: {error}",
                    dispatch="outcome_unknown" if started else "never_started",
                    hint=TOO_FEW_HINT,
                ) from error
            finally:
                self.engine.discard(jail)
        return build_result(
            raw,
            usage,
            limits,
            disk_full=self.is_full(),
            timings=Timings(
                queue_s=served - arrived, prepare_s=prepared - served, run_s=raw.duration_s
            ),
            isolation=self.engine.isolation,
            denials=proxy.take_denials() if proxy else (),
        )

    @contextmanager
    def tracked(self, execution: ProgramRun | CellRun) -> Generator[None]:
        """Register an execution, so that `cancel` and `close` end it."""
        self._running.add(execution)
        self._mark_busy()
        try:
            yield
        finally:
            self._running.discard(execution)
            self._notify_if_idle()

    async def _in_a_thread(self, operate: Callable[[], _T]) -> _T:
        """Run a file operation in a thread; `close` waits for it."""
        self.check_open()
        self._file_operations += 1
        self._mark_busy()
        try:
            return await anyio.to_thread.run_sync(operate)
        finally:
            self._file_operations -= 1
            self._notify_if_idle()

    def _mark_busy(self) -> None:
        if self._idle.is_set():
            self._idle = anyio.Event()

    def _notify_if_idle(self) -> None:
        if not self._running and not self._file_operations:
            self._idle.set()

    async def _prepare(self, stage: int, limits: Limits) -> Jail:
        """Take a jail of a stage, or of the highest ready stage below it."""
        self.check_open()
        pools = self.engine.jails
        ready = max(number for number in range(stage + 1) if pools[number].ready)
        provisioning = self._provisioning
        if provisioning is NOTHING:
            jail = await pools[ready].take()
        else:
            egress = provisioning.egress
            ports = () if egress is None else egress.dialer.policy.ports
            jail = await self.engine.make_jail(
                ready, ahead=False, layer=provisioning.layer, ports=ports
            )
        try:
            try:
                jail.group.apply(
                    memory_bytes=limits.memory_mb << 20,
                    processes=limits.processes + jail.own_tasks,
                )
            except OSError as error:
                raise SandboxUnavailableError(
                    f"the control group of the sandbox cannot be used: {error.strerror}",
                    dispatch="never_started",
                    hint=TOO_FEW_HINT if error.errno in _NO_DESCRIPTORS else "",
                ) from error
            # A jail that is still being prepared continues meanwhile.
            await self.engine.bind(self._box, jail)
            await await_readiness(jail)
            self.check_open()
        except BaseException:
            self.engine.discard(jail)
            raise
        return jail

    def watch(self, jail: Jail, limits: Limits) -> Watch:
        """Start measuring what runs in a jail."""
        engine = self.engine
        if engine.groups.enforcing:
            if not self._folders:
                return GroupWatch(jail)
            return GroupAndDiskWatch(jail, self._folders, act_as=engine.owner)
        watch = ContainedWatch if engine.tier == "contained" else ProcessWatch
        return watch(
            jail,
            limits.memory_mb << 20,
            self._folders,
            processes=limits.processes,
            act_as=engine.owner,
            files=self._workspace if engine.tier == "namespaces" else None,
        )

    def _paths(self) -> JailPaths:
        enforced = self.engine.groups.enforcing
        if self._folder is None:
            return JailPaths(
                workspace=WORKSPACE,
                temporary=TEMPORARY,
                packages=self._provisioning.packages,
                folders=self._provisioning.folders,
                groups_enforce=enforced,
            )
        workspace, temporary = (str(self._folder / name) for name in BOX_FOLDERS)
        return JailPaths(
            workspace=workspace,
            temporary=temporary,
            writable=(workspace, temporary, "/dev/null", "/dev/zero", "/dev/full"),
            packages=self._provisioning.packages,
            folders=self._provisioning.folders,
            groups_enforce=enforced,
            processes_elsewhere=count_processes(self.engine.owner or os.getuid()),
        )

    def is_full(self) -> bool:
        room = self._room_on_host()
        if room is not None:
            return room <= 0
        space = os.fstatvfs(self._workspace)
        return space.f_bfree == 0 or space.f_ffree == 0

    def _room_on_host(self) -> int | None:
        if not self._folders:
            return None
        with libc.file_access_as(self.engine.owner):
            return (self.enforced.disk_mb << 20) - sum(disk_use(folder) for folder in self._folders)

    def check_open(self) -> None:
        if not self._open:
            raise SandboxUnavailableError("the sandbox is closed", dispatch="never_started")

    @asynccontextmanager
    async def open_interpreter(self) -> AsyncGenerator[Interpreter]:
        jail = await self._prepare(len(self.engine.stages), self.limits)
        self._interpreters.add(jail)
        try:
            async with self._open_proxy(jail) as proxy:
                session = KernelSession(self, jail, proxy)
                try:
                    await session.start(encode_opening(self.limits, self._paths()))
                    interpreter = NativeInterpreter(session, await session.open_branch())
                    try:
                        yield interpreter
                    finally:
                        with anyio.CancelScope(shield=True):
                            await interpreter.close()
                finally:
                    session.orders.close()
        finally:
            self._end_interpreter(jail)

    def _open_proxy(self, jail: Jail) -> AbstractAsyncContextManager[EgressProxy | None]:
        if self._provisioning.egress is None:
            return nullcontext()
        return open_gate(self._provisioning.egress, jail.listeners)

    def _end_interpreter(self, jail: Jail) -> None:
        if jail in self._interpreters:
            self._interpreters.discard(jail)
            self.engine.discard(jail)

    async def cancel(self) -> None:
        for run in tuple(self._running):
            run.kill(Reason.CANCELLED)

    async def close(self) -> None:
        """End all executions, then release the workspace."""
        self._open = False
        while self._running or self._file_operations:
            await self.cancel()
            await self._idle.wait()
        for jail in tuple(self._interpreters):
            self._end_interpreter(jail)
        os.close(self._workspace)
        if self._changed is not None:
            os.close(self._changed)
        await self.engine.close_workspace(self._box)

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

    async def changes(self) -> WorkspaceChanges:
        return await self._in_a_thread(self._find_changes)

    def _find_changes(self) -> WorkspaceChanges:
        if self._layer is None:
            return WorkspaceChanges(written=self._files.list_below(PurePosixPath()), removed=())
        finder = ChangeFinder(
            self._workspace,
            self._layer.folder,
            act_as=self.engine.owner,
            upper=self._changed,
            stamps=self._stamps,
        )
        return finder.find()

    async def copy_layer_unless_mounted(self) -> None:
        """Copy the layer into the new workspace where the kernel did not mount it."""
        if self._layer is not None and self._changed is None:
            folder, owner = self._layer.folder, self.engine.owner
            copy = partial(copy_layer, folder, self._workspace, act_as=owner)
            self._stamps = await self._in_a_thread(copy)


def _shorter(limits: Limits, timeout_s: float | None) -> Limits:
    if timeout_s is None or timeout_s >= limits.wall_s:
        return limits
    return replace(limits, wall_s=timeout_s)


class KernelSession:
    """One kernel manager in its jail, and all its branches."""

    def __init__(self, sandbox: NativeSandbox, jail: Jail, proxy: EgressProxy | None) -> None:
        self.sandbox = sandbox
        self.jail = jail
        self.proxy = proxy
        self.watch = sandbox.watch(jail, sandbox.limits)
        self.orders = Orders(jail.go)
        self.branches = 0
        self._numbers = itertools.count()

    async def start(self, request: bytes) -> None:
        """Turn the worker of the jail into a kernel manager.

        Raises:
            SandboxUnavailableError: If that fails.
        """
        self.jail.stdin.close()
        self.jail.go.write_some(memoryview(request))
        await await_readiness(self.jail)

    async def open_branch(self, *, parent: BranchPipes | None = None) -> BranchPipes:
        """Start a first branch, or a copy of `parent`.

        Raises:
            SandboxUnavailableError: If the branch does not start.
        """
        pipes = BranchPipes(next(self._numbers))
        order = (
            {"do": "open", "line": pipes.number}
            if parent is None
            else {"do": "branch", "line": parent.number, "new": pipes.number}
        )
        try:
            self._allow_branches(self.branches + 1)
            try:
                self.orders.put(order, pipes.theirs)
            except OSError as error:
                raise SandboxUnavailableError(
                    f"out of descriptors: {error}", dispatch="never_started", hint=TOO_FEW_HINT
                ) from error
            pipes.hand_over()
            report = await self._first_report(pipes)
        except BaseException:
            pipes.close()
            raise
        if report.get("ready") is not True:
            pipes.close()
            raise SandboxUnavailableError(
                f"the interpreter could not be started: {report.get('gone', report)}",
                dispatch="never_started",
            )
        self.branches += 1
        return pipes

    async def _first_report(self, pipes: BranchPipes) -> Report:
        """Wait for the first report of a branch; close a branch that does not become ready."""
        report: Report = {}
        try:
            while self.orders.pending:
                await anyio.lowlevel.checkpoint()
                self.orders.send_more()
            report = await pipes.report()
        finally:
            if report.get("ready") is not True:
                self.orders.put({"do": "close", "line": pipes.number})
        return report

    async def close_branch(self, pipes: BranchPipes) -> None:
        """End a branch and everything that runs in it."""
        self.branches -= 1
        if not pipes.gone:
            pipes.gone = "it is closed"
            self.orders.put({"do": "close", "line": pipes.number})
            await pipes.report()
        pipes.close()

    def _allow_branches(self, branches: int) -> None:
        """Allow for our own processes: PID 1, the kernel manager, a Python kernel per branch."""
        limits = self.sandbox.limits
        most = limits.processes + self.jail.own_tasks + 1 + branches
        try:
            self.jail.group.apply(memory_bytes=limits.memory_mb << 20, processes=most)
        except OSError as error:
            raise SandboxUnavailableError(
                f"the control group of the interpreter is gone: {error.strerror}",
                dispatch="never_started",
            ) from error


class NativeInterpreter:
    """See `assay.contracts.ports.Interpreter`."""

    def __init__(self, session: KernelSession, pipes: BranchPipes, cells: int = 0) -> None:
        self._session = session
        self._sandbox = session.sandbox
        self._pipes = pipes
        self._cells = cells
        self._turn = anyio.Lock()
        self._running: CellRun | None = None

    async def run_cell(
        self, source: str, *, timeout_s: float | None = None, on_output: OnOutput = ignore_output
    ) -> CellResult:
        # Rejects what is invalid for every program.
        PythonCode(source=source.encode("utf-8", "replace"), timeout_s=timeout_s)
        sandbox, session = self._sandbox, self._session
        limits = _shorter(sandbox.enforced, timeout_s)
        arrived = time.perf_counter()
        async with self._turn, sandbox.turns:
            self._check_alive()
            self._cells += 1
            served = time.perf_counter()
            before = session.jail.group.usage()
            watch = CellWatch(session.watch, own_processes=1 + session.branches)
            run = CellRun(self._pipes, session.orders, session.jail, limits, watch, on_output)
            self._running = run
            begun = time.perf_counter()
            try:
                with sandbox.tracked(run):
                    ended = await run.follow(self._cells, source)
            finally:
                self._running = None
            usage = session.jail.group.usage().since(before)
            if self._pipes.gone:
                why = "out of memory" if usage.oom_kills else self._pipes.gone
                raise SandboxUnavailableError(
                    f"the interpreter is gone, and its variables with it: {why}",
                    dispatch="outcome_unknown",
                    hint="open another one; the files in the workspace are still there",
                )
            execution = build_result(
                ended.raw,
                usage,
                limits,
                disk_full=sandbox.is_full(),
                timings=Timings(
                    queue_s=served - arrived, prepare_s=begun - served, run_s=ended.raw.duration_s
                ),
                isolation=sandbox.engine.isolation,
                denials=session.proxy.take_denials() if session.proxy else (),
            )
            answers = decode_answers(ended.answers)
            if ended.kept and answers.complaint:
                line = f"assay: not all that the cell shows could be read: {answers.complaint}\n"
                stderr = execution.stderr_bytes + line.encode()
                execution = replace(execution, stderr_bytes=stderr)
            return CellResult(
                number=self._cells,
                execution=execution,
                outputs=answers.outputs,
                error=answers.error if ended.kept else None,
                state="kept" if ended.kept else "rolled_back",
            )

    async def interrupt(self) -> None:
        if self._running is not None:
            self._running.kill(Reason.CANCELLED)

    @asynccontextmanager
    async def branch(self) -> AsyncGenerator[Interpreter]:
        async with self._turn:
            self._check_alive()
            pipes = await self._session.open_branch(parent=self._pipes)
        branch = NativeInterpreter(self._session, pipes, self._cells)
        try:
            yield branch
        finally:
            with anyio.CancelScope(shield=True):
                await branch.close()

    async def close(self) -> None:
        """End the running cell, then the branch."""
        await self.interrupt()
        async with self._turn:
            await self._session.close_branch(self._pipes)

    def _check_alive(self) -> None:
        self._sandbox.check_open()
        if self._pipes.gone:
            raise SandboxUnavailableError(
                f"the interpreter is gone: {self._pipes.gone}", dispatch="never_started"
            )
