"""Admission of executor clients: quotas per client, one queue for all, and shutdown."""

import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Final

import anyio

from assay.contracts.errors import PolicyError, UsageError
from assay.contracts.execution import Limits, SandboxSpec
from assay.executor.observer import Watcher
from assay.sandbox.rpc.messages.failures import ExecutorBusyError
from assay.sandbox.rpc.open_sandboxes import ExecutionRequest, Note
from assay.screening.scan import ModuleRules

_SOON_S: Final = 1.0
_MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Quotas and limits of an executor."""

    executions: int
    """Maximum number of parallel executions, of all clients."""
    waiting: int
    """Maximum number of executions in the queue, of all clients."""
    client_executions: int
    """Maximum number of parallel executions of one client; more of them wait in the queue."""
    client_sandboxes: int
    client_per_minute: int
    maxima: Limits
    """Largest limits that a sandbox may have."""
    modules: ModuleRules = field(default_factory=ModuleRules)
    """Rules for Python modules that programs may import."""

    @property
    def client_waiting(self) -> int:
        """Number of executions of one client that may wait."""
        return share_of(self.waiting)

    def check_limits(self, limits: Limits) -> None:
        """Reject limits above the maxima.

        Raises:
            UsageError: If a limit exceeds its maximum.
        """
        for limit in fields(limits):
            asked, maximum = getattr(limits, limit.name), getattr(self.maxima, limit.name)
            if asked > maximum:
                raise UsageError(
                    f"{limit.name} is {asked:g}; this executor allows at most {maximum:g}",
                    hint=f"the executor's setting is executor.max_{limit.name}",
                )


def share_of(total: int) -> int:
    """Return the maximum share of one client, which leaves a part for others."""
    return max(1, total * 3 // 4)


class Admission:
    """State that all clients share."""

    def __init__(self, quotas: Quotas, watcher: Watcher) -> None:
        self.quotas = quotas
        self.watcher = watcher
        self.turns = anyio.Semaphore(quotas.executions)
        self.waiting = 0
        self.running = 0
        self._draining = False
        self._idle = anyio.Event()

    def gate_for(self, client: str, *, clock: Callable[[], float] = time.monotonic) -> "ClientGate":
        """Build the admission policy of one client."""
        return ClientGate(self, client, clock)

    def drain(self) -> None:
        """Reject all new requests from now on."""
        self._draining = True
        self.note_change()

    def check_open(self) -> None:
        """Reject a request while the executor shuts down.

        Raises:
            ExecutorBusyError: If it shuts down.
        """
        if self._draining:
            raise ExecutorBusyError("the executor is shutting down", retry_after_s=_SOON_S)

    def note_change(self) -> None:
        """Report the number of running and waiting executions to the observer."""
        self.watcher.note_load(running=self.running, waiting=self.waiting)
        if not self.running and not self.waiting:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until no execution runs or waits."""
        while self.running or self.waiting:
            self._idle = anyio.Event()
            await self._idle.wait()


class ClientGate:
    """Implementation of `assay.sandbox.rpc.open_sandboxes.AdmissionPolicy` for one client."""

    def __init__(self, admission: Admission, client: str, clock: Callable[[], float]) -> None:
        self._admission = admission
        self._client = client
        self._clock = clock
        self._turns = anyio.Semaphore(admission.quotas.client_executions)
        self._sandboxes = 0
        self._waiting = 0
        self._allowed = float(admission.quotas.client_per_minute)
        self._counted_at = clock()

    @asynccontextmanager
    async def opening(self, limits: Limits, equipment: SandboxSpec) -> AsyncGenerator[None]:
        del equipment
        self._admission.check_open()
        self._admission.quotas.check_limits(limits)
        if self._sandboxes >= self._admission.quotas.client_sandboxes:
            self._admission.watcher.note_refusal(self._client, "sandboxes")
            raise ExecutorBusyError(
                f"{self._client} has {self._sandboxes} sandboxes open, as many as it may",
                retry_after_s=_SOON_S,
            )
        self._sandboxes += 1
        self._admission.watcher.note_sandboxes(1)
        try:
            yield
        finally:
            self._sandboxes -= 1
            self._admission.watcher.note_sandboxes(-1)

    @asynccontextmanager
    async def executing(self, attempt: ExecutionRequest) -> AsyncGenerator[Note]:
        watcher = self._admission.watcher
        try:
            self._check()
            self._admission.quotas.check_limits(attempt.limits)
            self._check_modules(attempt)
        except (ExecutorBusyError, UsageError) as refusal:
            watcher.note_attempt(self._client, attempt, outcome="refused", why=str(refusal))
            raise
        async with self._turn():
            with watcher.watching(self._client, attempt) as note:
                yield note

    def check_file(self, path: PurePosixPath, content: bytes) -> None:
        try:
            self._admission.quotas.modules.check_file(path, content)
        except PolicyError:
            self._admission.watcher.note_refusal(self._client, "policy")
            raise

    def _check_modules(self, attempt: ExecutionRequest) -> None:
        for path, content in attempt.files:
            self.check_file(path, content)
        try:
            self._admission.quotas.modules.check_work(attempt.work)
        except PolicyError:
            self._admission.watcher.note_refusal(self._client, "policy")
            raise

    def _check(self) -> None:
        admission = self._admission
        admission.check_open()
        if (
            admission.waiting >= admission.quotas.waiting
            or self._waiting >= admission.quotas.client_waiting
        ):
            admission.watcher.note_refusal(self._client, "queue")
            raise ExecutorBusyError(
                f"{admission.waiting} executions are waiting already", retry_after_s=_SOON_S
            )
        per_minute = admission.quotas.client_per_minute
        now = self._clock()
        earned = (now - self._counted_at) * per_minute / _MINUTE_S
        self._allowed = min(float(per_minute), self._allowed + earned)
        self._counted_at = now
        if self._allowed < 1:
            admission.watcher.note_refusal(self._client, "rate")
            wait_s = (1 - self._allowed) * _MINUTE_S / per_minute
            raise ExecutorBusyError(
                f"{self._client} has asked for {per_minute} executions within a minute",
                retry_after_s=math.ceil(wait_s * 10) / 10,
            )
        self._allowed -= 1

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        admission = self._admission
        admission.waiting += 1
        self._waiting += 1
        admission.note_change()
        try:
            await self._turns.acquire()
            try:
                await admission.turns.acquire()
            except BaseException:
                self._turns.release()
                raise
        finally:
            admission.waiting -= 1
            self._waiting -= 1
            admission.note_change()
        admission.running += 1
        admission.note_change()
        try:
            yield
        finally:
            admission.running -= 1
            self._turns.release()
            admission.turns.release()
            admission.note_change()
