"""Single steps of a run, with doubles around them."""

from pathlib import PurePosixPath

from assay.agent.context import RunDeps, StepContext
from assay.agent.state import RunState
from assay.contracts.events import ScreenFinding
from assay.contracts.execution import Limits
from assay.contracts.goal import RunSpec
from assay.contracts.ports import Journal, Model
from assay.contracts.workspace import Tree
from assay.memory.stored_memory import ResilientMemory
from tests.doubles.fake_sandbox import FakeBackend
from tests.doubles.memory_journal import MemoryJournal


def _find_nothing(path: PurePosixPath, content: bytes) -> tuple[ScreenFinding, ...]:
    del path, content
    return ()


def a_sitting(
    model: Model,
    spec: RunSpec,
    *,
    state: RunState | None = None,
    pristine: Tree | None = None,
    journal: Journal | None = None,
) -> StepContext:
    """Build a step that this model is asked in, and in which nothing is really run."""
    deps = RunDeps(
        run="run-1",
        spec=spec,
        pristine=pristine or Tree(),
        model=model,
        backend=FakeBackend(),
        limits=Limits(),
        journal=journal or MemoryJournal(),
        tools=(),
        screen=_find_nothing,
        screening="warn",
        memory=ResilientMemory(None),
        memory_use="off",
    )
    return StepContext(deps=deps, state=state or RunState())
