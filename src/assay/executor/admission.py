"""Admission of executor clients: quotas per client, one queue for all, and shutdown."""

import math
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Final

import anyio

from assay.auth.rate_limit import RateLimiter
from assay.contracts.errors import PolicyError, UsageError
from assay.contracts.execution import Limits, SandboxSpec
from assay.executor.observer import Observer
from assay.sandbox.rpc.messages.failures import ExecutorBusyError
from assay.sandbox.rpc.open_sandboxes import ExecutionRequest, Note
from assay.screening.scan import ModuleRules

_SOON_S: Final = 1.0


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

    def __init__(self, quotas: Quotas, observer: Observer) -> None:
        self.quotas = quotas
        self.observer = observer
        self.turns = anyio.Semaphore(quotas.executions)
        self.limiter = RateLimiter()
        self.waiting = 0
        self.running = 0
        self._draining = False
        self._idle = anyio.Event()

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
        self.observer.running.set(self.running)
        self.observer.waiting.set(self.waiting)
        if not self.running and not self.waiting:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until no execution runs or waits."""
        while self.running or self.waiting:
            self._idle = anyio.Event()
            await self._idle.wait()


class ClientAdmission:
    """Implementation of `assay.sandbox.rpc.open_sandboxes.AdmissionPolicy` for one client."""

    def __init__(self, admission: Admission, client: str) -> None:
        self._admission = admission
        self._client = client
        self._turns = anyio.Semaphore(admission.quotas.client_executions)
        self._sandboxes = 0
        self._waiting = 0

    @asynccontextmanager
    async def opening(self, limits: Limits, equipment: SandboxSpec) -> AsyncGenerator[None]:
        del equipment
        shared = self._admission
        shared.check_open()
        shared.quotas.check_limits(limits)
        if self._sandboxes >= shared.quotas.client_sandboxes:
            shared.observer.refusals.labels("sandboxes").inc()
            raise ExecutorBusyError(
                f"{self._client} has {self._sandboxes} sandboxes open, as many as it may",
                retry_after_s=_SOON_S,
            )
        self._sandboxes += 1
        shared.observer.sandboxes.inc()
        try:
            yield
        finally:
            self._sandboxes -= 1
            shared.observer.sandboxes.dec()

    @asynccontextmanager
    async def executing(self, attempt: ExecutionRequest) -> AsyncGenerator[Note]:
        observer = self._admission.observer
        try:
            self._check_load()
            self._admission.quotas.check_limits(attempt.limits)
            with self._counting_policy():
                for path, content in attempt.files:
                    self._admission.quotas.modules.check_file(path, content)
                self._admission.quotas.modules.check_work(attempt.work)
        except (ExecutorBusyError, UsageError) as refusal:
            observer.note_refusal(self._client, attempt, str(refusal))
            raise
        async with self._turn():
            with observer.watching(self._client, attempt) as note:
                yield note

    def check_file(self, path: PurePosixPath, content: bytes) -> None:
        with self._counting_policy():
            self._admission.quotas.modules.check_file(path, content)

    @contextmanager
    def _counting_policy(self) -> Generator[None]:
        try:
            yield
        except PolicyError:
            self._admission.observer.refusals.labels("policy").inc()
            raise

    def _check_load(self) -> None:
        shared, quotas = self._admission, self._admission.quotas
        shared.check_open()
        if shared.waiting >= quotas.waiting or self._waiting >= quotas.client_waiting:
            shared.observer.refusals.labels("queue").inc()
            raise ExecutorBusyError(
                f"{shared.waiting} executions are waiting already", retry_after_s=_SOON_S
            )
        wait_s = shared.limiter.hit(quotas.client_per_minute, self._client)
        if wait_s is not None:
            shared.observer.refusals.labels("rate").inc()
            raise ExecutorBusyError(
                f"{self._client} has asked for {quotas.client_per_minute} executions within a "
                "minute",
                retry_after_s=max(0.1, math.ceil(wait_s * 10) / 10),
            )

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
