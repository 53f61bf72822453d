"""The dependencies and the context of a run's steps."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from assay.agent.state import REPLY, RunState
from assay.contracts.events import ModelReplied, OutputDelta, RunEvent, TextDelta
from assay.contracts.execution import DEFAULT_SPEC, Limits, OutputChunk, SandboxSpec
from assay.contracts.goal import MemoryUse, Policy, RunSpec
from assay.contracts.jsonable import jsonable
from assay.contracts.lessons import RecallQuery
from assay.contracts.messages import Reply, Request, Usage
from assay.contracts.ports import (
    Journal,
    LessonStore,
    Model,
    OnOutput,
    SandboxBackend,
    Screen,
    Tool,
)
from assay.contracts.workspace import Tree
from assay.verify.verifier import Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDeps:
    """The dependencies of a run."""

    run: str
    spec: RunSpec
    pristine: Tree
    model: Model
    backend: SandboxBackend
    limits: Limits
    journal: Journal
    tools: tuple[Tool, ...]
    screen: Screen
    screening: Policy
    memory: LessonStore
    memory_use: MemoryUse
    equipment: SandboxSpec = DEFAULT_SPEC
    """The packages and hosts of the sandboxes, for the prompt."""
    workspace: str = ""
    """The name of the workspace folder for the user."""
    clock: Callable[[], float] = time.monotonic

    @property
    def verifier(self) -> Verifier:
        return Verifier(self.backend, self.limits)

    @property
    def small(self) -> bool:
        """Whether the model is local: such models gain more from new samples than from repairs."""
        return self.model.facts.local


@dataclass(slots=True, kw_only=True)
class StepContext:
    """The context of one step of the graph: its events and its usage."""

    parts: RunDeps
    state: RunState
    spent: Usage = field(default_factory=Usage)
    told: dict[int, int] = field(default_factory=dict[int, int])
    shown: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    """IDs of the lessons that the model received, by attempt."""
    begun: float = 0.0

    def __post_init__(self) -> None:
        self.begun = self.parts.clock()

    def emit(self, event: RunEvent) -> None:
        """Emit an event once: a repeated step emits the same events under the same keys."""
        # Attempts may run concurrently; the order within each attempt is fixed.
        lane = getattr(event, "attempt", 0)
        self.told[lane] = self.told.get(lane, 0) + 1
        self.parts.journal.emit(event, key=f"{self.state.moves}.{lane}.{self.told[lane]}")

    async def once(
        self, key: str, make: Callable[[], Awaitable[Mapping[str, Any]]]
    ) -> Mapping[str, Any]:
        """Return the value stored under this key, or make and store it."""
        kept = await self.parts.journal.recall(key)
        if kept is None:
            kept = await make()
            await self.parts.journal.keep(key, kept)
        return kept

    async def ask(self, key: str, request: Request, *, attempt: int, step: int) -> Reply:
        """Ask the model, or return the stored reply if this request was paid for before.

        Raises:
            ModelUnavailableError: If the model did not answer.
            ModelRefusedError: If the model rejects the request.
            BudgetExceededError: If a cap does not allow the call.
        """

        async def really() -> Mapping[str, Any]:
            def pass_on(text: str) -> None:
                self.parts.journal.emit(TextDelta(attempt=attempt, text=text))

            return jsonable(await self.parts.model.reply(request, on_text=pass_on))

        reply = REPLY.validate_python(await self.once(f"reply:{key}", really))
        self.spent += reply.usage
        self.emit(
            ModelReplied(
                attempt=attempt,
                step=step,
                text=reply.message.text,
                calls=tuple(call.name for call in reply.message.tool_calls),
                usage=reply.usage,
            )
        )
        return reply

    async def lessons(self, cue: RecallQuery, *, attempt: int, most: int) -> tuple[str, ...]:
        """Recall lessons that match the query, and record that the model receives them."""
        found = (await self.parts.memory.recall(cue))[:most]
        self.shown.setdefault(attempt, []).extend(lesson.id for lesson in found)
        return tuple(lesson.text for lesson in found)

    def on_output(self, attempt: int) -> OnOutput:
        """Return a callback that emits the output of a program as events."""

        def pass_on(chunk: OutputChunk) -> None:
            text = chunk.data.decode("utf-8", errors="replace")
            self.parts.journal.emit(OutputDelta(attempt=attempt, text=text))

        return pass_on

    @property
    def wall_s(self) -> float:
        """The wall time of the run so far."""
        return self.state.wall_s + self.parts.clock() - self.begun

    def leave(self, state: RunState) -> RunState:
        """Close the step: add its usage and wall time to the state."""
        return replace(
            state,
            usage=state.usage + self.spent,
            wall_s=self.wall_s,
            moves=state.moves + 1,
        )
