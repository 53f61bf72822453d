"""Replay a run without a model: recorded replies, with everything else executed again."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.agent.context import RunDeps
from assay.agent.graph import run_graph
from assay.contracts.errors import ModelRefusedError, UsageError
from assay.contracts.events import Executed, FilesChanged, RunEvent, Verified
from assay.contracts.goal import RunResult
from assay.contracts.messages import ModelInfo, Reply, Request
from assay.contracts.ports import OnText, ignore_text
from assay.memory.stored_memory import ResilientMemory
from assay.runs.environment import environment_from_json
from assay.runs.history import HISTORY, RunHistory
from assay.runs.request import limits_of, spec_of
from assay.runs.runner import CHECKPOINTS, MODEL, MODEL_INFO, PACKAGES, PRISTINE, REPLIES
from assay.settings.load import Settings
from assay.storage.journal import DiskJournal, read_events
from assay.storage.layers import LayerStore
from assay.storage.run_store import RunStore
from assay.tools.workspace import WORKSPACE_TOOLS
from assay.wiring import build_screen, open_backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact that differs between the record and the replay."""

    attempt: int
    what: str
    recorded: str
    now: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of a recorded run with its replay."""

    run: str
    attempts: int
    executions: int
    """The number of checks that ran again."""
    differences: tuple[Difference, ...]
    outcome: RunResult

    @property
    def same(self) -> bool:
        return not self.differences

    def fields(self) -> dict[str, Any]:
        """Return the comparison as JSON fields."""
        return {
            "run": self.run,
            "same": self.same,
            "attempts": self.attempts,
            "executions": self.executions,
            "outcome": self.outcome.status.value,
            "grade": self.outcome.grade.value if self.outcome.grade else None,
            "differences": [
                {"attempt": d.attempt, "what": d.what, "recorded": d.recorded, "now": d.now}
                for d in self.differences
            ],
        }

    def lines(self) -> Iterator[str]:
        """Return the comparison as lines of text."""
        word = "the same as" if self.same else "not the same as"
        yield (
            f"{self.run}: {word} recorded: {self.attempts} attempts, "
            f"{self.executions} checks run again, {self.outcome.status.value.replace('_', ' ')}"
        )
        for difference in self.differences:
            yield (
                f"  attempt {difference.attempt}, {difference.what}: "
                f"recorded {difference.recorded}, now {difference.now}"
            )


def _ignore(notice: str) -> None:
    del notice


class _RecordedModel:
    """A model that only rejects requests: all recorded replies are already in the journal."""

    def __init__(self, name: str, info: ModelInfo) -> None:
        self.name = name
        self.info = info

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        del request, on_text
        raise ModelRefusedError("the record of this run ends here")


async def replay_run(
    name: str, settings: Settings, watch: Callable[[RunEvent], None]
) -> Comparison:
    """Replay a run in a temporary folder and compare the events with the record.

    Raises:
        UsageError: If there is no such run, or it has not started.
        AssayError: If a component fails.
    """
    run = RunStore(settings.state_dir).open(name)
    recorded = [entry.event for entry in read_events(run.folder)]
    again: list[RunEvent] = []
    layers = LayerStore(settings.state_dir)

    def listen(event: RunEvent) -> None:
        again.append(event)
        watch(event)

    with tempfile.TemporaryDirectory(prefix="assay-replay-") as scratch:
        folder = Path(scratch) / run.id
        async with (
            DiskJournal(run.folder) as source,
            DiskJournal(folder, listeners=(listen,), layers=layers) as journal,
        ):
            begun, model = await source.recall(PRISTINE), await source.recall(MODEL)
            if begun is None or model is None:
                raise UsageError(
                    "this run stopped before it had begun", hint="`assay resume` takes it up"
                )
            # The user's input and the model's replies are copied, but nothing else.
            pristine = await source.load_tree(begun["tree"])
            await journal.store_tree(pristine)
            history = await source.recall(HISTORY) or {"tree": ""}
            if history["tree"]:
                await journal.store_tree(await source.load_tree(history["tree"]))
            await journal.keep(HISTORY, history)
            for key, reply in source.kept_under(REPLIES):
                await journal.keep(f"{REPLIES}{key}", reply)
            kept = await source.recall(PACKAGES) or {"pins": ()}
            chosen = settings.sandbox.model_copy(update={"hosts": run.request.hosts})
            environment = environment_from_json(chosen, kept)
            info = MODEL_INFO.validate_python(model["facts"])
            opening = open_backend(environment.sandbox, project=environment.project)
            async with opening as backend:
                deps = RunDeps(
                    run=run.id,
                    spec=spec_of(run.request, info),
                    pristine=pristine,
                    model=_RecordedModel(model["name"], info),
                    backend=backend,
                    equipment=environment.equipment,
                    limits=limits_of(settings.agent),
                    journal=journal,
                    tools=WORKSPACE_TOOLS,
                    screen=build_screen(settings.screening),
                    screening=run.request.screening,
                    memory=ResilientMemory(None),
                    memory_use="off",
                    workspace=str(run.request.workspace or ""),
                    history=RunHistory(
                        journal=journal, workspace=None, pristine=pristine, on_notice=_ignore
                    ).load,
                )
                result, _ = await run_graph(deps, folder / CHECKPOINTS)
    return _compared(run.id, recorded, again, result)


def _compared(
    run: str, recorded: list[RunEvent], again: list[RunEvent], outcome: RunResult
) -> Comparison:
    before, after = _facts(recorded), _facts(again)
    differences = [
        Difference(attempt=key[0], what=key[1], recorded=was, now=after.get(key, "nothing"))
        for key, was in before.items()
        if after.get(key) != was
    ]
    return Comparison(
        run=run,
        attempts=len({key[0] for key in after}),
        executions=sum(isinstance(event, Executed | Verified) for event in again),
        differences=tuple(differences),
        outcome=replace(outcome, run=run),
    )


def _facts(events: list[RunEvent]) -> dict[tuple[int, str], str]:
    """Return the facts that must match, as text, by attempt and kind."""
    facts: dict[tuple[int, str], str] = {}
    for event in events:
        match event:
            case FilesChanged(attempt=attempt, tree=tree):
                facts[attempt, "files"] = tree[:12]
            case Executed(attempt=attempt, reports=reports):
                tests = [test for report in reports for test in report.tests]
                for test in tests:
                    facts[attempt, f"test {test.id}"] = test.status.value
                facts[attempt, "checks"] = _words(all(report.passed for report in reports))
            case Verified(attempt=attempt, verdict=verdict):
                facts[attempt, "verdict"] = _words(verdict.accepted)
                facts[attempt, "grade"] = verdict.grade.value if verdict.grade else "none"
            case _:
                pass
    return facts


def _words(passed: bool) -> str:  # noqa: FBT001 - one fact in, one word out
    return "passed" if passed else "failed"
