"""A sandbox whose programs end when the test lets them, and a backend that has only that one."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from assay.contracts.execution import (
    DEFAULT_SPEC,
    ExecutionResult,
    Isolation,
    Limits,
    OutputChunk,
    Program,
    SandboxSpec,
)
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from tests.doubles.fake_sandbox import FakeSandbox, answer_with


@dataclass(slots=True, kw_only=True)
class SlowSandbox(FakeSandbox):
    """Says `begun`, and goes on when it is told to."""

    begun: anyio.Event = field(default_factory=anyio.Event)
    go_on: anyio.Event = field(default_factory=anyio.Event)
    killed: anyio.Event = field(default_factory=anyio.Event)

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        self.programs.append(program)
        on_output(OutputChunk(stream="stdout", data=b"begun"))
        self.begun.set()
        try:
            await self.go_on.wait()
        except BaseException:
            self.killed.set()
            raise
        on_output(OutputChunk(stream="stdout", data=b", gone on"))
        return answer_with("begun, gone on")


@dataclass(frozen=True, slots=True)
class OneSandbox:
    """A backend that hands out the same sandbox every time."""

    sandbox: Sandbox
    name: str = "fake"
    isolation: Isolation = Isolation.NONE
    closed: anyio.Event = field(default_factory=anyio.Event)

    @asynccontextmanager
    async def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AsyncGenerator[Sandbox]:
        del limits, equipment
        try:
            yield self.sandbox
        finally:
            self.closed.set()
