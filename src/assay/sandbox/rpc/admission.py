"""What stands between a request and its being carried out: quotas, queues, records."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from assay.contracts.execution import ExecutionResult, Limits, Program, SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRequest:
    """An execution that is asked for."""

    execution_id: str
    work: Program | str
    """A program, or the source of a cell."""
    limits: Limits
    equipment: SandboxSpec
    files: tuple[tuple[PurePosixPath, bytes], ...] = ()
    """What is written into its sandbox first."""


Note = Callable[[ExecutionResult], None]
"""Told how an attempt ended."""


class AdmissionPolicy(Protocol):
    """Lets requests through, one after the other or not at all."""

    def opening(self, limits: Limits, equipment: SandboxSpec) -> AbstractAsyncContextManager[None]:
        """Be around a sandbox from its opening to its close.

        Raises:
            SandboxUnavailableError: `never_started`, if there are too many.
            UsageError: If no such sandbox may be had.
        """
        ...

    def executing(self, attempt: ExecutionRequest) -> AbstractAsyncContextManager[Note]:
        """Be around one execution.

        Raises:
            SandboxUnavailableError: `never_started`, if there are too many.
            PolicyError: If no such program may be run.
        """
        ...

    def check_file(self, path: PurePosixPath, content: bytes) -> None:
        """Look at a file before it is written.

        Raises:
            PolicyError: If no such file may be written.
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
"""Lets everything through."""
