"""Measures the controller's own time per attempt, without the model and the executed code.

    python benchmarks/controller.py [--attempts 30] [--json FILE]

A scripted model proposes a new wrong file each time; the check is a small command. The time in the
model and in executions is subtracted. The rest is the controller: prompts, edits, journal writes
with fsync, checkpoints, file transfers, feedback, events.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import anyio

from assay.agent.context import RunDeps
from assay.agent.graph import run_graph
from assay.contracts.events import AttemptStarted, RunEvent
from assay.contracts.execution import (
    DEFAULT_SPEC,
    ExecutionResult,
    Isolation,
    Limits,
    Program,
    SandboxSpec,
)
from assay.contracts.goal import RunLimits, RunSpec
from assay.contracts.messages import (
    Message,
    ModelInfo,
    Price,
    Reply,
    Request,
    StopReason,
    Usage,
)
from assay.contracts.ports import (
    OnOutput,
    OnText,
    Sandbox,
    SandboxBackend,
    ignore_output,
    ignore_text,
)
from assay.contracts.workspace import Tree
from assay.memory.stored_memory import ResilientMemory
from assay.settings.load import load_settings
from assay.storage.journal import DiskJournal
from assay.tools.workspace import WORKSPACE_TOOLS
from assay.wiring import build_screen, open_backend

_INFO = ModelInfo(
    context_tokens=100_000,
    max_output_tokens=8_000,
    tool_calls=False,
    price=Price(input_usd=0.0, output_usd=0.0),
    local=True,
    small=True,
)


class Clock:
    """Sums the time in the model and in executions."""

    def __init__(self) -> None:
        self.others_s = 0.0

    @asynccontextmanager
    async def of_others(self) -> AsyncGenerator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.others_s += time.perf_counter() - started


class WrongModel:
    """Returns a different wrong answer each time, without delay."""

    name = "wrong"
    info = _INFO

    def __init__(self) -> None:
        self._said = 0

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        del request
        self._said += 1
        text = f"FILE: answer.py\n```python\nANSWER = {self._said}\n```\nDONE"
        on_text(text)
        return Reply(
            message=Message(role="assistant", text=text),
            stop_reason=StopReason.ENDED,
            usage=Usage(calls=1),
            model="wrong",
        )


class TimedSandbox:
    """A sandbox whose executions are subtracted; file transfers are not."""

    def __init__(self, sandbox: Sandbox, clock: Clock) -> None:
        self._sandbox = sandbox
        self._clock = clock

    def __getattr__(self, name: str) -> object:
        return getattr(self._sandbox, name)

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        async with self._clock.of_others():
            return await self._sandbox.run(program, on_output=on_output)


class TimedBackend:
    """A backend with such sandboxes."""

    def __init__(self, backend: SandboxBackend, clock: Clock) -> None:
        self.name = backend.name
        self.isolation: Isolation = backend.isolation
        self._backend = backend
        self._clock = clock

    @asynccontextmanager
    async def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AsyncGenerator[Sandbox]:
        async with self._backend.open_sandbox(limits, equipment) as sandbox:
            yield TimedSandbox(sandbox, self._clock)  # pyright: ignore[reportReturnType] - passes the rest on


async def measure(attempts: int, *, small: bool) -> list[float]:
    """Return the controller's seconds for each attempt except the first and the last."""
    clock = Clock()
    marks: list[float] = []

    def listen(event: RunEvent) -> None:
        if isinstance(event, AttemptStarted):
            marks.append(time.perf_counter() - clock.others_s)

    model = WrongModel()
    model.info = replace(_INFO, small=small)
    spec = RunSpec(
        goal="Write answer.py with the answer",
        checks=("grep -q 'ANSWER = 0' answer.py",),
        limits=RunLimits(attempts=attempts, repairs=1),
    )
    settings = load_settings()
    with tempfile.TemporaryDirectory(prefix="assay-controller-") as scratch:
        folder = Path(scratch) / "run"
        async with (
            open_backend(settings.sandbox) as backend,
            DiskJournal(folder, listeners=(listen,)) as journal,
        ):
            await journal.store_tree(Tree())
            parts = RunDeps(
                run="controller",
                spec=spec,
                pristine=Tree(),
                model=model,
                backend=TimedBackend(backend, clock),
                limits=Limits(),
                journal=journal,
                tools=WORKSPACE_TOOLS,
                screen=build_screen(settings.screening),
                screening="warn",
                memory=ResilientMemory(None),
                memory_use="off",
            )
            await run_graph(parts, folder / "checkpoints.sqlite")
    return [after - before for before, after in pairwise(marks[1:])]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attempts", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name, small in (("one reply per attempt", True), ("conversation with tools", False)):
        ours_ms = [1000 * seconds for seconds in anyio.run(_measured(arguments.attempts, small))]
        p95 = statistics.quantiles(ours_ms, n=20)[-1]
        found[name] = {"p50_ms": statistics.median(ours_ms), "p95_ms": p95}
        print(f"{name:24} p50 {found[name]['p50_ms']:6.1f} ms   p95 {p95:6.1f} ms   (target 25 ms)")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    return 0


def _measured(attempts: int, small: bool):  # noqa: ANN202, FBT001 - a thunk for anyio.run
    async def run() -> list[float]:
        return await measure(attempts, small=small)

    return run


if __name__ == "__main__":
    sys.exit(main())
