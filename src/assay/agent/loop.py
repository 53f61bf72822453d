"""Carry out one run, from its goal to its outcome."""

from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from assay.agent.context import RunDeps, StepContext
from assay.agent.graph import open_graph
from assay.agent.state import Plan, RunState
from assay.agent.steps.finish import end
from assay.contracts.events import RunResumed, RunStarted
from assay.contracts.goal import RunResult


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a run, and its plan."""

    outcome: RunResult
    plan: Plan


async def pursue(parts: RunDeps, checkpoints: Path) -> Ended:
    """Carry out a goal, or continue a stopped run.

    The caller emits the event of the outcome, after it has delivered the files.

    Raises:
        ModelUnavailableError: If the model stops answering; the run can be resumed.
        ModelRefusedError: If the model rejected the very first request.
        SandboxUnavailableError: If no sandbox is available; the run can be resumed.
        JournalError: If the journal cannot be written.
    """
    async with open_graph(parts, checkpoints) as graph:
        begun = await graph.state()
        if begun is None:
            parts.journal.emit(_started(parts), key="started")
        elif begun.ending is not None:
            return Ended(begun.ending, begun.plan)
        else:
            parts.journal.emit(RunResumed(run=parts.run))
        used_s = begun.wall_s if begun else 0.0
        with anyio.move_on_after(parts.goal.effort.wall_s - used_s):
            await graph.go_on()
        state = await graph.state() or RunState()
    if state.ending is None:
        # The time ran out within a step. That step is lost; the results of earlier steps remain.
        late = replace(state, wall_s=max(state.wall_s, parts.goal.effort.wall_s))
        state = await end(StepContext(parts=parts, state=late), late, None)
    assert state.ending is not None  # noqa: S101 - for the type checker: there is one by now
    return Ended(state.ending, state.plan)


def _started(parts: RunDeps) -> RunStarted:
    return RunStarted(
        run=parts.run,
        goal=parts.goal,
        model=parts.model.name,
        backend=parts.backend.name,
        isolation=parts.backend.isolation.value,
        workspace=parts.workspace,
        tree=parts.pristine.digest,
        withheld=parts.pristine.withheld,
    )
