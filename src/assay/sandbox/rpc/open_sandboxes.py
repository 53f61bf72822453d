"""The sandboxes that a client has open on the executor side, and the policy that admits them.

The admission policy covers quotas, queues and audit records.
"""

import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, Protocol

import anyio
import anyio.abc

from assay.asyncx.owned_context import Held
from assay.contracts.errors import SandboxUnavailableError, UsageError
from assay.contracts.execution import ExecutionResult, Limits, Program, SandboxSpec
from assay.contracts.ports import Interpreter, Sandbox, SandboxBackend


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


class _OpenGate:
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


OPEN_GATE: AdmissionPolicy = _OpenGate()
"""Admits every request."""


_MOST_INTERPRETERS: Final = 64
"""Per sandbox, branches included."""


@dataclass(slots=True, kw_only=True)
class Place:
    """One open sandbox with its open interpreters."""

    sandbox: Sandbox
    limits: Limits
    equipment: SandboxSpec
    held: Held[Sandbox]
    interpreters: dict[str, Held[Interpreter]] = field(default_factory=dict[str, Held[Interpreter]])
    """By id, in the order of opening."""
    calls: int = 0
    asked_at: float = field(default_factory=time.monotonic)

    @contextmanager
    def used(self) -> Generator["Place"]:
        """Mark the sandbox as used for the duration of a call."""
        self.calls += 1
        try:
            yield self
        finally:
            self.calls -= 1
            self.asked_at = time.monotonic()


class Places:
    """All open sandboxes of one client."""

    def __init__(
        self, backend: SandboxBackend, tasks: anyio.abc.TaskGroup, gate: AdmissionPolicy
    ) -> None:
        self._backend = backend
        self._tasks = tasks
        self._gate = gate
        self._places: dict[str, Place] = {}

    async def open(self, sandbox_id: str, limits: Limits, equipment: SandboxSpec) -> Place:
        """Open a sandbox; raises the errors of the backend and of the admission policy."""
        if sandbox_id in self._places:
            raise UsageError(f"there is a sandbox {sandbox_id!r} already")
        held: Held[Sandbox] = Held()
        sandbox = await held.enter(self.opened(limits, equipment), self._tasks)
        place = Place(sandbox=sandbox, limits=limits, equipment=equipment, held=held)
        self._places[sandbox_id] = place
        return place

    @asynccontextmanager
    async def opened(self, limits: Limits, equipment: SandboxSpec) -> AsyncGenerator[Sandbox]:
        """Open a sandbox without an id that ends with the context."""
        async with (
            self._gate.opening(limits, equipment),
            self._backend.open_sandbox(limits, equipment) as sandbox,
        ):
            yield sandbox

    def find(self, sandbox_id: str) -> Place:
        """Return the sandbox with this id.

        Raises:
            SandboxUnavailableError: If it is not open.
        """
        if sandbox_id not in self._places:
            raise SandboxUnavailableError(
                "there is no such sandbox (any more)", dispatch="never_started"
            )
        return self._places[sandbox_id]

    async def close(self, sandbox_id: str) -> None:
        """Close a sandbox with everything in it; an unknown id counts as closed."""
        place = self._places.pop(sandbox_id, None)
        if place is None:
            return
        # Branches are listed after their origins.
        for interpreter_id in reversed(tuple(place.interpreters)):
            await place.interpreters.pop(interpreter_id).leave()
        await place.held.leave()

    async def close_all(self) -> None:
        """Close all sandboxes concurrently."""
        async with anyio.create_task_group() as closing:
            for sandbox_id in tuple(self._places):
                closing.start_soon(self.close, sandbox_id)

    async def close_unasked(self, lease_s: float) -> None:
        """Close the sandboxes that were not used for this long."""
        now = time.monotonic()
        for sandbox_id, place in tuple(self._places.items()):
            if not place.calls and now - place.asked_at > lease_s:
                await self.close(sandbox_id)

    def __len__(self) -> int:
        return len(self._places)

    async def open_interpreter(
        self, place: Place, interpreter_id: str, context: AbstractAsyncContextManager[Interpreter]
    ) -> None:
        """Open an interpreter or a branch of one; raises the errors of that call."""
        if any(interpreter_id in other.interpreters for other in self._places.values()):
            raise UsageError(f"there is an interpreter {interpreter_id!r} already")
        if len(place.interpreters) >= _MOST_INTERPRETERS:
            raise UsageError(f"a sandbox has at most {_MOST_INTERPRETERS} interpreters")
        held: Held[Interpreter] = Held()
        await held.enter(context, self._tasks)
        place.interpreters[interpreter_id] = held

    def find_interpreter(self, interpreter_id: str) -> tuple[Place, Interpreter]:
        """Return an interpreter and its sandbox.

        Raises:
            SandboxUnavailableError: If it is not open.
        """
        for place in self._places.values():
            if held := place.interpreters.get(interpreter_id):
                return place, held.thing
        raise SandboxUnavailableError(
            "there is no such interpreter (any more)", dispatch="never_started"
        )

    async def close_interpreter(self, interpreter_id: str) -> None:
        """Close an interpreter; an unknown id counts as closed."""
        for place in self._places.values():
            if held := place.interpreters.pop(interpreter_id, None):
                await held.leave()
                return
