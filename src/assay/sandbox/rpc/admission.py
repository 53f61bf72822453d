"""Admission policy of the sandbox service: quotas, queues and audit records."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from assay.contracts.execution import ExecutionResult, Limits, Program, SandboxSpec


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
