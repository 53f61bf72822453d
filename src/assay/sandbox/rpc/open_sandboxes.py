"""The sandboxes that a client has open on the executor side, and the policy that admits them.

The admission policy covers quotas, queues and audit records.
"""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final, Protocol, TypeVar

import anyio
import anyio.abc

from assay.asyncx.owned_context import OwnedContext
from assay.contracts.errors import SandboxUnavailableError, UsageError
from assay.contracts.execution import ExecutionResult, Limits, Program, SandboxSpec
from assay.contracts.ports import Interpreter, Sandbox, SandboxBackend
from assay.contracts.workspace import WorkspaceLayer

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRequest:
    """A request to run a program or cell."""

    execution_id: str
    work: Program | str
    """A program, or the source of a cell."""
    limits: Limits
    equipment: SandboxSpec
    files: tuple[tuple[PurePosixPath, bytes], ...] = ()
    """Files that the service writes into the program's sandbox before it starts."""


Note = Callable[[ExecutionResult], None]
"""Receives the result of an execution."""


class AdmissionPolicy(Protocol):
    """Decides whether and when the service carries out a request."""

    def opening(self, limits: Limits, equipment: SandboxSpec) -> AbstractAsyncContextManager[None]:
        """Surround a sandbox from its opening to its close.

        Raises:
            SandboxUnavailableError: `never_started`, if too many sandboxes are open.
            UsageError: If the policy does not allow such a sandbox.
        """
        ...

    def executing(self, attempt: ExecutionRequest) -> AbstractAsyncContextManager[Note]:
        """Surround one execution.

        Raises:
            SandboxUnavailableError: `never_started`, if too many executions are running.
            PolicyError: If the policy does not allow the program.
        """
        ...

    def check_file(self, path: PurePosixPath, content: bytes) -> None:
        """Check a file before the service writes it.

        Raises:
            PolicyError: If the policy does not allow the file.
        """
        ...


class _AdmitAll:
    @asynccontextmanager
    async def opening(self, limits: Limits, equipment: SandboxSpec) -> AsyncGenerator[None]:
        del limits, equipment
        yield

    @asynccontextmanager
    async def executing(self, attempt: ExecutionRequest) -> AsyncGenerator[Note]:
        del attempt
        yield lambda _: None

    def check_file(self, path: PurePosixPath, content: bytes) -> None:
        pass


ADMIT_ALL: AdmissionPolicy = _AdmitAll()

_MOST_INTERPRETERS: Final = 64
"""Per sandbox, branches included."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def _logging_close(context: AbstractAsyncContextManager[T]) -> AsyncGenerator[T]:
    """Log errors of closing: the client has gone, or does not wait for them."""
    entered = False
    try:
        async with context as opened:
            entered = True
            yield opened
    except Exception:
        if not entered:
            raise
        _log.exception("a sandbox or an interpreter was not closed properly")


@dataclass(slots=True, kw_only=True)
class OpenSandbox:
    """One open sandbox with its open interpreters."""

    sandbox: Sandbox
    limits: Limits
    equipment: SandboxSpec
    context: OwnedContext[Sandbox]
    interpreters: dict[str, tuple[Interpreter, OwnedContext[Interpreter]]] = field(
        default_factory=dict[str, tuple[Interpreter, OwnedContext[Interpreter]]]
    )
    """By id, in the order of opening."""
    calls: int = 0
    used_at: float = field(default_factory=time.monotonic)

    @contextmanager
    def used(self) -> Generator["OpenSandbox"]:
        """Mark the sandbox as used for the duration of a call."""
        self.calls += 1
        try:
            yield self
        finally:
            self.calls -= 1
            self.used_at = time.monotonic()


class OpenSandboxes:
    """All open sandboxes of one client."""

    def __init__(
        self, backend: SandboxBackend, tasks: anyio.abc.TaskGroup, admission: AdmissionPolicy
    ) -> None:
        self._backend = backend
        self._tasks = tasks
        self._admission = admission
        self._sandboxes: dict[str, OpenSandbox] = {}

    async def open(
        self,
        sandbox_id: str,
        limits: Limits,
        equipment: SandboxSpec,
        layer: AbstractAsyncContextManager[WorkspaceLayer] | None = None,
    ) -> None:
        """Open a sandbox; raises the errors of the backend and of the admission policy."""
        if sandbox_id in self._sandboxes:
            raise UsageError(f"there is a sandbox {sandbox_id!r} already")
        context: OwnedContext[Sandbox] = OwnedContext(self._tasks)
        sandbox = await context.take(_logging_close(self.opened(limits, equipment, layer)))
        self._sandboxes[sandbox_id] = OpenSandbox(
            sandbox=sandbox, limits=limits, equipment=equipment, context=context
        )

    @asynccontextmanager
    async def opened(
        self,
        limits: Limits,
        equipment: SandboxSpec,
        layer: AbstractAsyncContextManager[WorkspaceLayer] | None = None,
    ) -> AsyncGenerator[Sandbox]:
        """Open a sandbox without an id that ends with the context."""
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._admission.opening(limits, equipment))
            if layer is not None:
                found = await held.enter_async_context(layer)
                equipment = replace(equipment, layer=found)
            yield await held.enter_async_context(self._backend.open_sandbox(limits, equipment))

    def find(self, sandbox_id: str) -> OpenSandbox:
        """Return the sandbox with this id.

        Raises:
            SandboxUnavailableError: If it is not open.
        """
        if sandbox_id not in self._sandboxes:
            raise SandboxUnavailableError(
                "there is no such sandbox (any more)", dispatch="never_started"
            )
        return self._sandboxes[sandbox_id]

    async def close(self, sandbox_id: str) -> None:
        """Close a sandbox with everything in it; an unknown id counts as closed."""
        closing = self._sandboxes.pop(sandbox_id, None)
        if closing is None:
            return
        # Branches are listed after their origins.
        while closing.interpreters:
            _, (_, context) = closing.interpreters.popitem()
            await context.vacate()
        await closing.context.vacate()

    async def close_all(self) -> None:
        """Close all sandboxes concurrently."""
        async with anyio.create_task_group() as closing:
            for sandbox_id in tuple(self._sandboxes):
                closing.start_soon(self.close, sandbox_id)

    async def close_unused(self, lease_s: float) -> None:
        """Close the sandboxes that were not used for this long."""
        now = time.monotonic()
        for sandbox_id, found in tuple(self._sandboxes.items()):
            if not found.calls and now - found.used_at > lease_s:
                await self.close(sandbox_id)

    async def open_interpreter(
        self,
        parent: OpenSandbox,
        interpreter_id: str,
        opening: AbstractAsyncContextManager[Interpreter],
    ) -> None:
        """Open an interpreter or a branch of one; raises the errors of that call."""
        if any(interpreter_id in other.interpreters for other in self._sandboxes.values()):
            raise UsageError(f"there is an interpreter {interpreter_id!r} already")
        if len(parent.interpreters) >= _MOST_INTERPRETERS:
            raise UsageError(f"a sandbox has at most {_MOST_INTERPRETERS} interpreters")
        context: OwnedContext[Interpreter] = OwnedContext(self._tasks)
        parent.interpreters[interpreter_id] = await context.take(_logging_close(opening)), context

    def find_interpreter(self, interpreter_id: str) -> tuple[OpenSandbox, Interpreter]:
        """Return an interpreter and its sandbox.

        Raises:
            SandboxUnavailableError: If it is not open.
        """
        for parent in self._sandboxes.values():
            if found := parent.interpreters.get(interpreter_id):
                return parent, found[0]
        raise SandboxUnavailableError(
            "there is no such interpreter (any more)", dispatch="never_started"
        )

    async def close_interpreter(self, interpreter_id: str) -> None:
        """Close an interpreter; an unknown id counts as closed."""
        for parent in self._sandboxes.values():
            if found := parent.interpreters.pop(interpreter_id, None):
                await found[1].vacate()
                return
