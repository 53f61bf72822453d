"""The dependencies and the context of a run's steps."""

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from assay.agent.compaction import largest_reply
from assay.agent.feedback import first_failing
from assay.agent.instructions import NO_INSTRUCTIONS, ProjectInstructions
from assay.agent.prompt_builder import first_message, room_for_files, whole_file_message
from assay.agent.state import OBSERVATIONS, REPLY, Attempt, Plan, RunState
from assay.contracts.errors import BudgetExceededError
from assay.contracts.events import ModelReplied, OutputDelta, Planned, RunEvent, TextDelta
from assay.contracts.execution import DEFAULT_SPEC, Limits, OutputChunk, SandboxSpec
from assay.contracts.goal import MemoryUse, Policy, RunLimits, RunSpec
from assay.contracts.jsonable import jsonable
from assay.contracts.lessons import RecallQuery
from assay.contracts.messages import Reply, Request, StopReason, Usage
from assay.contracts.ports import (
    Journal,
    LessonStore,
    Model,
    OnOutput,
    SandboxBackend,
    Screen,
    Tool,
)
from assay.contracts.workspace import Tree, changes_between
from assay.text.diffs import unified_diff
from assay.verify.known_failures import has_failed_tests, judge_by_difference, without_witness
from assay.verify.parse_command import split_command
from assay.verify.spec import Observation, VerificationSpec
from assay.verify.verifier import Verifier

_HANGS: Final = (
    "a check does not end within {s:g} s on the untouched files; if it is only slow, "
    "--baseline-timeout gives it more time"
)


async def no_history() -> Tree:
    """Return the git history of a workspace without a repository."""
    return Tree()


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
    instructions: ProjectInstructions = NO_INSTRUCTIONS
    workspace: str = ""
    """The name of the workspace folder for the user."""
    history: Callable[[], Awaitable[Tree]] = no_history
    """Returns a copy of the git history, with the paths of its files from the workspace."""
    clock: Callable[[], float] = time.monotonic

    @property
    def verifier(self) -> Verifier:
        return Verifier(self.backend, self.limits)

    @property
    def small(self) -> bool:
        """Whether the model is small: such models gain more from new samples than from repairs."""
        return self.model.info.small


@dataclass(slots=True, kw_only=True)
class StepContext:
    """The context of one step of the graph: its events and its usage."""

    deps: RunDeps
    state: RunState
    spent: Usage = field(default_factory=Usage)
    emitted: dict[int, int] = field(default_factory=dict[int, int])
    """The number of events so far, by attempt."""
    shown: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    """IDs of the lessons that the model received, by attempt."""
    started_s: float = 0.0

    def __post_init__(self) -> None:
        self.started_s = self.deps.clock()

    def emit(self, event: RunEvent) -> None:
        """Emit an event once: a repeated step emits the same events under the same keys."""
        # Attempts may run concurrently; the order within each attempt is fixed.
        lane = getattr(event, "attempt", 0)
        self.emitted[lane] = self.emitted.get(lane, 0) + 1
        self.deps.journal.emit(event, key=f"{self.state.actions}.{lane}.{self.emitted[lane]}")

    async def once(
        self, key: str, make: Callable[[], Awaitable[Mapping[str, Any]]]
    ) -> Mapping[str, Any]:
        """Return the value stored under this key, or make and store it."""
        kept = await self.deps.journal.recall(key)
        if kept is None:
            kept = await make()
            await self.deps.journal.keep(key, kept)
        return kept

    async def ask(self, key: str, request: Request, *, attempt: int, step: int) -> Reply:
        """Ask the model; repeat a request once with more room if its reply was cut off by length.

        Raises:
            ModelUnavailableError: If the model did not answer.
            ModelRefusedError: If the model rejects the request.
            BudgetExceededError: If a cap does not allow the call.
        """
        reply = await self._ask_once(key, request, attempt=attempt, step=step)
        if reply.stop_reason is not StopReason.LENGTH:
            return reply
        if self.deps.small and reply.message.text.strip():
            # A small model is cut off if it repeats itself, and more room would not help it. An
            # empty text was cut off in its reasoning.
            return reply
        most = largest_reply(request, self.deps.model.info)
        if most <= self.deps.model.info.output_limit(request):
            return reply
        larger = replace(request, max_output_tokens=most)
        try:
            return await self._ask_once(f"{key}.longer", larger, attempt=attempt, step=step)
        except BudgetExceededError:
            return reply

    async def _ask_once(self, key: str, request: Request, *, attempt: int, step: int) -> Reply:
        """Ask the model, or return the stored reply if this request was paid for before.

        Raises:
            ModelUnavailableError: If the model did not answer.
            ModelRefusedError: If the model rejects the request.
            BudgetExceededError: If a cap does not allow the call.
        """

        async def really() -> Mapping[str, Any]:
            def pass_on(text: str) -> None:
                self.deps.journal.emit(TextDelta(attempt=attempt, text=text))

            return jsonable(await self.deps.model.reply(request, on_text=pass_on))

        reply = REPLY.validate_python(await self.once(f"reply:{key}", really))
        self.spent += reply.usage
        self.emit(
            ModelReplied(
                attempt=attempt,
                step=step,
                text=reply.message.text,
                calls=tuple(call.name for call in reply.message.tool_calls),
                usage=reply.usage,
                cut_off=reply.stop_reason is StopReason.LENGTH,
            )
        )
        return reply

    def emit_plan(self, plan: Plan) -> None:
        """Emit the plan; a model with tools states its steps later, in its first reply."""
        baseline_s = self.deps.spec.limits.baseline_timeout_s
        self.emit(
            Planned(
                steps=plan.steps,
                targets=plan.targets,
                checks=plan.checks,
                lessons=plan.lessons,
                snippets=tuple(name for snippet in plan.snippets for name in snippet.names),
                baseline=_HANGS.format(s=baseline_s) if plan.hangs else plan.remark,
                instructions="" if self.deps.small else self.deps.instructions.path,
            )
        )

    async def run_checks(
        self, key: str, spec: VerificationSpec, tree: Tree, *, attempt: int
    ) -> tuple[Observation, ...]:
        """Run the checks on a tree, or return the stored observations; this is no verdict.

        Raises:
            SandboxUnavailableError: If no sandbox is available.
        """

        async def really() -> Mapping[str, Any]:
            observations = await self.deps.verifier.run_checks(
                spec, tree, on_output=self.on_output(attempt)
            )
            return {"observations": jsonable(observations)}

        kept = await self.once(key, really)
        return OBSERVATIONS.validate_python(kept["observations"])

    async def run_baseline(
        self, spec: VerificationSpec, checks: tuple[str, ...]
    ) -> tuple[Observation, ...]:
        """Run checks on the untouched files, or return the stored observations.

        Raises:
            SandboxUnavailableError: If no sandbox is available.
        """
        limits = self.deps.spec.limits
        timeout_s = min(spec.check_timeout_s, limits.baseline_timeout_s)
        earlier = replace(spec, checks=checks, check_timeout_s=timeout_s)
        key = hashlib.sha256("\0".join(checks).encode()).hexdigest()[:16]
        return await self.run_checks(f"baseline:{key}", earlier, spec.pristine, attempt=0)

    async def leave_out_known_failures(
        self, spec: VerificationSpec, tree: Tree, observations: tuple[Observation, ...]
    ) -> tuple[Observation, ...]:
        """Return the observations as the verifier judges them, compared with the untouched files.

        Raises:
            SandboxUnavailableError: If no sandbox is available.
        """
        relevant = any(has_failed_tests(observation) for observation in observations)
        if not relevant or not self.deps.spec.limits.baseline_timeout_s:
            return observations
        before = await self.run_baseline(spec, spec.checks)
        paths = tuple(change.path for change in changes_between(spec.pristine, tree))
        judged = tuple(
            judge_by_difference(spec, seen, earlier.report, paths)
            for seen, earlier in zip(observations, before, strict=True)
        )
        reports = [seen.report for seen in judged]
        if all(report.passed for report in reports):
            # Without a test that the change fixes, the failing tests remain the work to do.
            earlier = [seen.report for seen in before]
            return observations if without_witness(reports, earlier) else judged
        return judged

    def verification_spec(self, plan: Plan, pristine: Tree) -> VerificationSpec:
        """Return the verification spec of a plan."""
        spec = self.deps.spec
        named = (word for check in plan.checks for word in split_command(check) if "::" in word)
        own = (str(path) for path in plan.protected if path not in self.deps.pristine.files)
        return VerificationSpec(
            pristine=pristine,
            checks=plan.checks,
            protected=plan.protected,
            allowed=spec.allowed,
            goal=spec.goal,
            required=(*spec.required, *named, *own),
            most=plan.most,
            check_timeout_s=spec.limits.check_timeout_s,
            baseline_timeout_s=spec.limits.baseline_timeout_s or RunLimits().baseline_timeout_s,
        )

    def first_message(
        self,
        plan: Plan,
        tree: Tree,
        *,
        tried: tuple[str, ...] = (),
        base: Attempt | None = None,
    ) -> str:
        """Return the first message of a prompt: the goal, and where the work begins.

        `base` is the attempt whose files are in `tree`: its failures are in the feedback, which
        follows this message, so this message has its change and the source of its failing tests.
        """
        deps = self.deps
        goal, room = deps.spec.goal, room_for_files(deps.model.info)
        if deps.small:
            return whole_file_message(goal, plan, tree, max_chars=room, equipment=deps.equipment)
        change = ""
        if base is not None and base.reports:
            failing = first_failing(base.reports)
            plan = replace(plan, fails_now="", failing=failing)
            change = unified_diff(
                deps.pristine.without(plan.protected), tree.without(plan.protected)
            )
        return first_message(
            goal,
            plan,
            tree,
            max_chars=room,
            equipment=deps.equipment,
            instructions=deps.instructions,
            change=change,
            tried=tried,
        )

    async def lessons(self, cue: RecallQuery, *, attempt: int, most: int) -> tuple[str, ...]:
        """Recall lessons that match the query, and record that the model receives them."""
        found = (await self.deps.memory.recall(cue))[:most]
        self.shown.setdefault(attempt, []).extend(lesson.id for lesson in found)
        return tuple(lesson.text for lesson in found)

    def on_output(self, attempt: int) -> OnOutput:
        """Return a callback that emits the output of a program as events."""

        def pass_on(chunk: OutputChunk) -> None:
            text = chunk.data.decode("utf-8", errors="replace")
            self.deps.journal.emit(OutputDelta(attempt=attempt, text=text))

        return pass_on

    @property
    def wall_s(self) -> float:
        """The wall time of the run so far."""
        return self.state.wall_s + self.deps.clock() - self.started_s

    def leave(self, state: RunState) -> RunState:
        """Close the step: add its usage and wall time to the state."""
        return replace(
            state,
            usage=state.usage + self.spent,
            wall_s=self.wall_s,
            actions=state.actions + 1,
        )
