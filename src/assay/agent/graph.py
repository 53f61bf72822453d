"""The run loop as a graph, with the state on disk after each step.

`run_graph` carries out one run, from its goal to its outcome. Only this module uses LangGraph. The
graph carries one value, the run's state as plain JSON. Checkpoints therefore need no Assay
class, and reading one runs no code.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict

import anyio

from assay.agent.context import RunDeps, StepContext
from assay.agent.state import STATE, Plan, RunState
from assay.agent.steps.check import execute, screen, verify
from assay.agent.steps.code import propose
from assay.agent.steps.finish import end
from assay.agent.steps.plan import make_plan
from assay.agent.steps.reflect import reflect
from assay.contracts.errors import BudgetExceededError, JournalError, require
from assay.contracts.events import RunResumed, RunStarted
from assay.contracts.goal import RunResult
from assay.contracts.jsonable import jsonable

if TYPE_CHECKING:
    from langgraph.graph.state import (  # pyright: ignore[reportMissingTypeStubs] - typed, without the mark
        CompiledStateGraph,
        StateGraph,
    )

_Work = Callable[[StepContext], Awaitable[RunState]]

STEPS: Final[dict[str, _Work]] = {
    "plan": make_plan,
    "code": propose,
    "screen": screen,
    "execute": execute,
    "verify": verify,
    "reflect": reflect,
}
NEXT: Final = "next"
AGAIN: Final = "again"
OVER: Final = "over"
"""Conditions of edges. Each step can end the run, for example if the budget is used up."""


class _Channels(TypedDict):
    state: dict[str, Any]


class _Step(Protocol):
    """The signature of a LangGraph node; LangGraph inspects the parameter's name."""

    async def __call__(self, state: _Channels) -> _Channels: ...


@dataclass(frozen=True, slots=True)
class RunGraph:
    """A compiled graph, and the thread ID of one run."""

    compiled: "CompiledStateGraph[_Channels, None, _Channels, _Channels]"
    config: dict[str, Any]

    async def state(self) -> RunState | None:
        """Return the state after the last step; None before the first."""
        snapshot = await self.compiled.aget_state(self.config)  # pyright: ignore[reportArgumentType] - a plain dict will do
        kept = snapshot.values.get("state") if snapshot.values else None
        return STATE.validate_python(kept) if kept is not None else None

    async def go_on(self) -> RunState:
        """Run steps until the run ends; a resumed run continues after its last checkpoint."""
        started = await self.state()
        begin: Any = None if started is not None else {"state": jsonable(RunState())}
        last = await self.compiled.ainvoke(begin, self.config, durability="sync")  # pyright: ignore[reportArgumentType, reportUnknownMemberType] - as above
        return STATE.validate_python(last["state"])


def load_library() -> None:
    """Import LangGraph early: the import takes a second, which a server spends at startup.

    Raises:
        MissingExtraError: If LangGraph is not installed.
    """
    with require("carrying out a goal", extra="agent"):
        for name in ("graph", "checkpoint.sqlite.aio", "checkpoint.serde.jsonplus"):
            import_module(f"langgraph.{name}")


@asynccontextmanager
async def open_graph(deps: RunDeps, checkpoints: Path) -> AsyncGenerator[RunGraph]:
    """Open the graph of one run, with its checkpoints in this file.

    Raises:
        MissingExtraError: If LangGraph is not installed.
        JournalError: If the file cannot be opened.
    """
    with require("carrying out a goal", extra="agent"):
        from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    import sqlite3

    graph = _assemble(lambda work: _node(deps, work))
    try:
        async with AsyncSqliteSaver.from_conn_string(str(checkpoints)) as saver:
            # The state is plain JSON, so no other type may be deserialized.
            saver.serde = JsonPlusSerializer(allowed_msgpack_modules=None)
            # A killed process loses nothing. After a power failure, the graph may be a step behind
            # the journal, which still has the paid replies.
            await saver.conn.execute("PRAGMA synchronous = NORMAL")
            compiled = graph.compile(checkpointer=saver)  # pyright: ignore[reportUnknownMemberType] - as above
            config = {
                "configurable": {"thread_id": deps.run},
                # A round has five steps. LangGraph counts steps to stop endless loops.
                "recursion_limit": 10 + len(STEPS) * (deps.spec.limits.attempts + 1),
            }
            yield RunGraph(compiled, config)
    except sqlite3.Error as error:
        raise JournalError(f"the checkpoints of the run cannot be used: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One edge of the compiled graph."""

    source: str
    """Empty: the start of the run."""
    target: str
    """Empty: the end of the run."""
    condition: str = ""
    """Empty for an unconditional edge."""


def describe_passages() -> tuple[Passage, ...]:
    """Return the edges of the compiled graph, for a diagram.

    Raises:
        MissingExtraError: If LangGraph is not installed.
    """

    async def stay(state: _Channels) -> _Channels:
        return state

    drawn = _assemble(lambda _: stay).compile().get_graph()  # pyright: ignore[reportUnknownMemberType] - as above
    return tuple(
        Passage(
            source=edge.source if edge.source in STEPS else "",
            target=edge.target if edge.target in STEPS else "",
            condition=str(edge.data) if edge.conditional else "",
        )
        for edge in drawn.edges
    )


def _assemble(
    step_of: Callable[[_Work], _Step],
) -> "StateGraph[_Channels, None, _Channels, _Channels]":
    with require("carrying out a goal", extra="agent"):
        from langgraph.graph import (  # pyright: ignore[reportMissingTypeStubs]
            END,
            START,
            StateGraph,
        )
    graph = StateGraph(_Channels)
    for name, work in STEPS.items():
        graph.add_node(name, step_of(work))  # pyright: ignore[reportUnknownMemberType] - loosely typed there
    first, *_, last = STEPS
    graph.add_edge(START, first)
    for before, after in pairwise(STEPS):
        graph.add_conditional_edges(before, _unless_over(NEXT), {NEXT: after, OVER: END})
    graph.add_conditional_edges(last, _unless_over(AGAIN), {AGAIN: "code", OVER: END})
    return graph


def _node(deps: RunDeps, work: _Work) -> _Step:
    async def take_step(state: _Channels) -> _Channels:
        before = STATE.validate_python(state["state"])
        context = StepContext(deps=deps, state=before)
        try:
            after = await work(context)
        except BudgetExceededError as error:
            after = await end(context, replace(before, round=()), None, stopped=str(error))
        return {"state": jsonable(context.leave(after))}

    return take_step


def _unless_over(onward: str) -> Callable[[_Channels], Awaitable[str]]:
    # Asynchronous although it awaits nothing: LangGraph runs synchronous functions in a thread.
    async def choose(state: _Channels) -> str:
        return onward if state["state"]["ending"] is None else OVER

    return choose


async def run_graph(deps: RunDeps, checkpoints: Path) -> tuple[RunResult, Plan]:
    """Carry out a goal, or continue a stopped run; return the result and the plan.

    The caller emits the event of the outcome, after it has delivered the files.

    Raises:
        ModelUnavailableError: If the model stops answering; the run can be resumed.
        ModelRefusedError: If the model rejected the very first request.
        SandboxUnavailableError: If no sandbox is available; the run can be resumed.
        JournalError: If the journal cannot be written.
    """
    async with open_graph(deps, checkpoints) as graph:
        begun = await graph.state()
        if begun is None:
            deps.journal.emit(_started(deps), key="started")
        elif begun.ending is not None:
            return begun.ending, begun.plan
        else:
            deps.journal.emit(RunResumed(run=deps.run))
        used_s = begun.wall_s if begun else 0.0
        with anyio.move_on_after(deps.spec.limits.wall_s - used_s):
            await graph.go_on()
        state = await graph.state() or RunState()
    if state.ending is None:
        # The time ran out within a step. That step is lost; the results of earlier steps remain.
        late = replace(state, wall_s=max(state.wall_s, deps.spec.limits.wall_s))
        state = await end(StepContext(deps=deps, state=late), late, None)
    assert state.ending is not None  # noqa: S101 - for the type checker: there is one by now
    return state.ending, state.plan


def _started(deps: RunDeps) -> RunStarted:
    return RunStarted(
        run=deps.run,
        spec=deps.spec,
        model=deps.model.name,
        backend=deps.backend.name,
        isolation=deps.backend.isolation.value,
        workspace=deps.workspace,
        tree=deps.pristine.digest,
        withheld=deps.pristine.withheld,
    )
