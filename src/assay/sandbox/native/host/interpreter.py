"""Interpreters of the native sandbox: one jail with a kernel manager, and its branches.

The first branch opens with the interpreter. `branch` adds another one, which has its own pipes and
shares everything else.
"""

import itertools
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import (
    BlockedConnection,
    CellResult,
    ExecutionResult,
    Isolation,
    Limits,
    PythonCode,
    Reason,
    Timings,
)
from assay.contracts.ports import Interpreter, OnOutput, ignore_output
from assay.sandbox.native.host.branch import (
    Answers,
    BranchPipes,
    CellEnding,
    CellRun,
    Orders,
    Report,
    decode_answers,
)
from assay.sandbox.native.host.engine import await_readiness
from assay.sandbox.native.host.jail import Jail
from assay.sandbox.native.host.supervisor import ResultInputs, conclude
from assay.sandbox.native.host.usage_monitor import CellWatch, Watch
from assay.sandbox.native.kernel.cgroups import GroupUsage
from assay.sandbox.native.kernel.open_files import TOO_FEW_HINT


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterDeps:
    """What a sandbox provides to an interpreter that runs in it."""

    cell: Jail
    limits: Limits
    watch: Watch
    turns: anyio.Semaphore
    isolation: Isolation
    is_full: Callable[[], bool]
    tracked: Callable[[CellRun], AbstractContextManager[None]]
    """Registers a running cell, so that `cancel` and `close` of the sandbox end it."""
    check_open: Callable[[], None]
    denied: Callable[[], tuple[BlockedConnection, ...]]
    """Returns the connections that were blocked since the last call."""


class Session:
    """One kernel manager and all its branches."""

    def __init__(self, premises: InterpreterDeps) -> None:
        self.premises = premises
        self.orders = Orders(premises.cell.go)
        self.lines = 0
        self._numbers = itertools.count()

    async def start(self, request: bytes) -> None:
        """Turn the worker of the jail into a kernel manager.

        Raises:
            SandboxUnavailableError: If that fails.
        """
        cell = self.premises.cell
        cell.stdin.close()
        cell.go.write_some(memoryview(request))
        await await_readiness(cell)

    async def open_line(self, *, parent: BranchPipes | None = None) -> BranchPipes:
        """Start a first branch, or a copy of `parent`.

        Raises:
            SandboxUnavailableError: If the branch does not start.
        """
        lineage = BranchPipes(next(self._numbers))
        order = (
            {"do": "open", "line": lineage.number}
            if parent is None
            else {"do": "branch", "line": parent.number, "new": lineage.number}
        )
        try:
            self._make_room(self.lines + 1)
            self._order_with(lineage, order)
            report = await self._first_word(lineage)
        except BaseException:
            lineage.close()
            raise
        if report.get("ready") is not True:
            lineage.close()
            raise SandboxUnavailableError(
                f"the interpreter could not be started: {report.get('gone', report)}",
                dispatch="never_started",
            )
        self.lines += 1
        return lineage

    def _order_with(self, lineage: BranchPipes, order: Mapping[str, object]) -> None:
        try:
            self.orders.put(order, lineage.theirs)
        except OSError as error:
            raise SandboxUnavailableError(
                f"out of descriptors: {error}", dispatch="never_started", hint=TOO_FEW_HINT
            ) from error
        lineage.hand_over()

    async def _first_word(self, lineage: BranchPipes) -> Report:
        """Wait for the first report of a branch; close a branch that does not become ready."""
        report: Report = {}
        try:
            while self.orders.pending:
                await anyio.lowlevel.checkpoint()
                self.orders.send_more()
            report = await lineage.report()
        finally:
            if report.get("ready") is not True:
                self.orders.put({"do": "close", "line": lineage.number})
        return report

    async def close_line(self, lineage: BranchPipes) -> None:
        """End a branch and everything that runs in it."""
        self.lines -= 1
        if not lineage.gone:
            lineage.gone = "it is closed"
            self.orders.put({"do": "close", "line": lineage.number})
            await lineage.report()
        lineage.close()

    def _make_room(self, lines: int) -> None:
        """Allow for our own processes: PID 1, the kernel manager, a Python kernel per branch."""
        limits, cell = self.premises.limits, self.premises.cell
        most = limits.processes + cell.own_tasks + 1 + lines
        try:
            cell.group.apply(memory_bytes=limits.memory_mb << 20, processes=most)
        except OSError as error:
            raise SandboxUnavailableError(
                f"the control group of the interpreter is gone: {error.strerror}",
                dispatch="never_started",
            ) from error


class NativeInterpreter:
    """See `assay.contracts.ports.Interpreter`."""

    def __init__(self, session: Session, lineage: BranchPipes, cells: int = 0) -> None:
        self._session = session
        self._premises = session.premises
        self._lineage = lineage
        self._cells = cells
        self._turn = anyio.Lock()
        self._running: CellRun | None = None

    async def run_cell(
        self, source: str, *, timeout_s: float | None = None, on_output: OnOutput = ignore_output
    ) -> CellResult:
        limits = self._limits_for(source, timeout_s)
        arrived = time.perf_counter()
        async with self._turn, self._premises.turns:
            self._check_alive()
            self._cells += 1
            served = time.perf_counter()
            group = self._premises.cell.group
            before = group.usage()
            run = self._prepare(limits)
            begun = time.perf_counter()
            try:
                with self._premises.tracked(run):
                    ended = await run.follow(self._cells, source, on_output)
            finally:
                self._running = None
            usage = group.usage().since(before)
            self._check_survived(usage)
            timings = Timings(
                queue_s=served - arrived, prepare_s=begun - served, run_s=ended.ending.duration_s
            )
            return self._result(ended, usage, limits, timings)

    async def interrupt(self) -> None:
        if self._running is not None:
            self._running.kill(Reason.CANCELLED)

    @asynccontextmanager
    async def branch(self) -> AsyncGenerator[Interpreter]:
        async with self._turn:
            self._check_alive()
            lineage = await self._session.open_line(parent=self._lineage)
        branch = NativeInterpreter(self._session, lineage, self._cells)
        try:
            yield branch
        finally:
            with anyio.CancelScope(shield=True):
                await branch.close()

    async def close(self) -> None:
        """End the running cell, then the branch."""
        await self.interrupt()
        async with self._turn:
            await self._session.close_line(self._lineage)

    def _limits_for(self, source: str, timeout_s: float | None) -> Limits:
        # Rejects what is invalid for every program.
        PythonCode(source=source.encode("utf-8", "replace"), timeout_s=timeout_s)
        limits = self._premises.limits
        if timeout_s is None or timeout_s >= limits.wall_s:
            return limits
        return replace(limits, wall_s=timeout_s)

    def _check_alive(self) -> None:
        self._premises.check_open()
        if self._lineage.gone:
            raise SandboxUnavailableError(
                f"the interpreter is gone: {self._lineage.gone}", dispatch="never_started"
            )

    def _prepare(self, limits: Limits) -> CellRun:
        premises = self._premises
        watch = CellWatch(premises.watch, own_processes=1 + self._session.lines)
        run = CellRun(self._lineage, self._session.orders, premises.cell, limits, watch)
        self._running = run
        return run

    def _check_survived(self, usage: GroupUsage) -> None:
        if self._lineage.gone:
            why = "out of memory" if usage.oom_kills else self._lineage.gone
            raise SandboxUnavailableError(
                f"the interpreter is gone, and its variables with it: {why}",
                dispatch="outcome_unknown",
                hint="open another one; the files in the workspace are still there",
            )

    def _result(
        self, ended: CellEnding, usage: GroupUsage, limits: Limits, timings: Timings
    ) -> CellResult:
        evidence = ResultInputs(
            ending=ended.ending,
            usage=usage,
            limits=limits,
            disk_full=self._premises.is_full(),
            timings=timings,
            isolation=self._premises.isolation,
            denials=self._premises.denied(),
        )
        execution = conclude(evidence)
        answers = decode_answers(ended.answers)
        return CellResult(
            number=self._cells,
            execution=_with_complaint(execution, answers) if ended.kept else execution,
            outputs=answers.outputs,
            error=answers.error if ended.kept else None,
            state="kept" if ended.kept else "rolled_back",
        )


def _with_complaint(execution: ExecutionResult, answers: Answers) -> ExecutionResult:
    if not answers.complaint:
        return execution
    line = f"assay: not all that the cell shows could be read: {answers.complaint}\n"
    return replace(execution, stderr_bytes=execution.stderr_bytes + line.encode())
