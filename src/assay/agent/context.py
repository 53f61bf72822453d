"""What the steps of a run work with: chosen and joined elsewhere, used here."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from assay.agent.state import REPLY, RunState
from assay.contracts.events import ModelReplied, OutputDelta, RunEvent, TextDelta
from assay.contracts.execution import DEFAULT_SPEC, Limits, OutputChunk, SandboxSpec
from assay.contracts.goal import Goal, MemoryUse
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

Policy = Literal["off", "warn", "block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDeps:
    """Everything a run is made of."""

    run: str
    goal: Goal
    pristine: Tree
    model: Model
    backend: SandboxBackend
    limits: Limits
    journal: Journal
    tools: tuple[Tool, ...]
    screen: Screen
    policy: Policy
    memory: LessonStore
    memory_use: MemoryUse
    equipment: SandboxSpec = DEFAULT_SPEC
    """What the sandboxes of the backend have, for the model to know."""
    workspace: str = ""
    """What a person calls the folder."""
    clock: Callable[[], float] = time.monotonic

    @property
    def verifier(self) -> Verifier:
        return Verifier(self.backend, self.limits)

    @property
    def small(self) -> bool:
        """Whether the model is one that is better sampled often than asked to repair."""
        return self.model.facts.local


@dataclass(slots=True, kw_only=True)
class StepContext:
    """One step of the graph while it is being taken: its events, and what it paid for."""

    parts: RunDeps
    state: RunState
    spent: Usage = field(default_factory=Usage)
    told: dict[int, int] = field(default_factory=dict[int, int])
    shown: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    """Lessons that the model was shown, by attempt."""
    begun: float = 0.0

    def __post_init__(self) -> None:
        self.begun = self.parts.clock()

    def emit(self, event: RunEvent) -> None:
        """Tell an event, once: a step that is taken again tells the same ones by the same names."""
        # Attempts may run side by side; the order within each of them is always the same.
        lane = getattr(event, "attempt", 0)
        self.told[lane] = self.told.get(lane, 0) + 1
        self.parts.journal.emit(event, key=f"{self.state.moves}.{lane}.{self.told[lane]}")

    async def once(
        self, key: str, make: Callable[[], Awaitable[Mapping[str, Any]]]
    ) -> Mapping[str, Any]:
        """Return what was kept under this key, or make and keep it."""
        kept = await self.parts.journal.recall(key)
        if kept is None:
            kept = await make()
            await self.parts.journal.keep(key, kept)
        return kept

    async def ask(self, key: str, request: Request, *, attempt: int, step: int) -> Reply:
        """Ask the model, or return the answer to this very question if it was paid for before.

        Raises:
            ModelUnavailableError: If there was no answer.
            ModelRefusedError: If there will be none.
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
        """Recall what fits the moment, and remember that it was shown."""
        found = (await self.parts.memory.recall(cue))[:most]
        self.shown.setdefault(attempt, []).extend(lesson.id for lesson in found)
        return tuple(lesson.text for lesson in found)

    def on_output(self, attempt: int) -> OnOutput:
        """Be the listener that shows what a program prints."""

        def pass_on(chunk: OutputChunk) -> None:
            text = chunk.data.decode("utf-8", errors="replace")
            self.parts.journal.emit(OutputDelta(attempt=attempt, text=text))

        return pass_on

    @property
    def wall_s(self) -> float:
        """Used up by the run so far."""
        return self.state.wall_s + self.parts.clock() - self.begun

    def leave(self, state: RunState) -> RunState:
        """Close the step: add up what it took."""
        return replace(
            state,
            usage=state.usage + self.spent,
            wall_s=self.wall_s,
            moves=state.moves + 1,
        )
