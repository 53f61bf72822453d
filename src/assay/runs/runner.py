"""Carry out a run: create it, connect its dependencies and deliver accepted files.

The journal stores values for a later resume under the keys that are defined here.
"""

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
from pydantic import TypeAdapter

from assay.agent.context import RunDeps
from assay.agent.graph import Ended, pursue
from assay.agent.state import REPLY
from assay.contracts.errors import BudgetExceededError, MissingExtraError, PackageError, UsageError
from assay.contracts.events import RunEnded
from assay.contracts.execution import SandboxSpec
from assay.contracts.goal import Goal, RunResult
from assay.contracts.messages import ModelFacts, Usage
from assay.contracts.ports import Model, SandboxBackend
from assay.contracts.workspace import Tree, Withheld
from assay.models.open import OpenOptions, build_meter
from assay.runs.request import (
    Commission,
    RunCallbacks,
    commission_from_json,
    commission_to_json,
    goal_of,
    limits_of,
)
from assay.settings.load import BudgetSettings, SandboxSettings, Settings
from assay.storage.apply_changes import write_changes
from assay.storage.certificates import (
    Certificate,
    Proof,
    build_certificate,
    describe_environment,
    write_certificate,
)
from assay.storage.journal import DiskJournal
from assay.storage.lock import hold_workspace
from assay.storage.read_workspace import included_paths, path_within, read_workspace
from assay.storage.run_store import Run, RunRequest, RunStore
from assay.storage.signing_keys import signing_key
from assay.telemetry.events import log_run_events
from assay.text.diffs import unified_diff
from assay.tools.workspace import WORKSPACE_TOOLS
from assay.wiring import (
    build_screen,
    check_extras,
    open_backend,
    open_memory,
    open_model,
    pin_packages,
)

PRISTINE: Final = "pristine"
"""The workspace at the start of the run."""
MODEL: Final = "model"
"""The model: a resumed run keeps it, even if `auto` would select another one now."""
HANDED_OVER: Final = "handed over"
"""The path of the certificate, set after delivery: a resumed run does not deliver twice."""
PACKAGES: Final = "packages"
"""The exact package versions for the sandboxes of this run."""
REPLIES: Final = "reply:"
"""Prefix of the model's replies, which have been paid for."""

_FACTS: Final = TypeAdapter(ModelFacts)
WITHHELD: Final = TypeAdapter(tuple[Withheld, ...])
"""The files that the run cannot see, stored with `PRISTINE`."""


def model_to_json(model: Model) -> dict[str, Any]:
    """Convert the model's name and facts to JSON."""
    return {"name": model.name, "facts": _FACTS.dump_python(model.facts, mode="json")}


def model_from_json(fields: Mapping[str, Any]) -> tuple[str, ModelFacts]:
    """Read the model's name and facts from JSON."""
    return fields["name"], _FACTS.validate_python(fields["facts"])


CHECKPOINTS = "checkpoints.sqlite"
CERTIFICATES = ".assay"
_CERTIFICATE = "certificate.json"
_SMALL_ATTEMPTS = 16
_N = TypeVar("_N", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """Resources that the caller opens and closes, shared by many runs."""

    backend: SandboxBackend
    model: Model | None = None
    """None: each run opens its own model."""
    most_tokens: int | None = None
    """The quota's remaining tokens, a cap for the whole run in addition to its own cap."""
    most_usd: float | None = None


async def start_run(
    commission: Commission, settings: Settings, watching: RunCallbacks, *, lent: Lent | None = None
) -> RunResult:
    """Start a run and carry it out; resources that are not in `lent` are opened for it.

    Raises:
        UsageError: If the request is invalid.
        AssayError: If a component fails; completed work is kept, and the run can be resumed.
    """
    if lent is None:
        _check_extras(commission, settings)
    store = RunStore(settings.state_dir)
    async with _alone(commission, settings, watching) as note:
        run, tree = await _entered(commission, store)
        note(run.id)
        try:
            return await _work_on(run, commission, settings, watching, tree=tree, lent=lent)
        except (UsageError, MissingExtraError, PackageError):
            if not await _was_answered(run):
                # The request was invalid and no model was paid for, so there is nothing to resume.
                store.delete(run.id)
                watching.run = ""
            raise


def _alone(
    commission: Commission, settings: Settings, watching: RunCallbacks
) -> AbstractAsyncContextManager[Callable[[str], None]]:
    return hold_workspace(
        commission.workspace, settings.state_dir, wait=watching.wait, on_notice=watching.on_notice
    )


def _check_extras(commission: Commission, settings: Settings) -> None:
    check_extras(
        "carrying out a goal",
        settings,
        "agent",
        model=commission.model,
        packages=commission.packages,
    )


async def _was_answered(run: Run) -> bool:
    async with DiskJournal(run.folder) as journal:
        return any(journal.kept_under(REPLIES))


async def create_run(commission: Commission, settings: Settings) -> Run:
    """Store a run without starting it; `resume_run` starts it, in this process or another one.

    Raises:
        UsageError: If the request is invalid.
        JournalError: If the run cannot be written.
    """
    run, _ = await _entered(commission, RunStore(settings.state_dir))
    return run


async def _entered(commission: Commission, store: RunStore) -> tuple[Run, Tree]:
    tree = await _untouched(commission)
    # An absolute path, because a resume may start in another folder.
    place = commission.workspace.absolute() if commission.workspace else None
    request = RunRequest(
        goal=goal_of(commission, tree),
        workspace=str(place or ""),
        model=commission.model,
        options=commission_to_json(replace(commission, workspace=place)),
    )
    return store.create(request), tree


async def resume_run(
    name: str, settings: Settings, watching: RunCallbacks, *, lent: Lent | None = None
) -> RunResult:
    """Continue a stopped run, for any reason of the stop.

    Raises:
        UsageError: If there is no such run, or another process works on it.
        AssayError: As for `start_run`.
    """
    run = RunStore(settings.state_dir).open(name)
    commission = commission_from_json(run.request.options)
    if lent is None:
        _check_extras(commission, settings)
    async with _alone(commission, settings, watching) as note:
        note(run.id)
        return await _work_on(run, commission, settings, watching, lent=lent)


async def _work_on(
    run: Run,
    commission: Commission,
    settings: Settings,
    watching: RunCallbacks,
    *,
    tree: Tree | None = None,
    lent: Lent | None = None,
) -> RunResult:
    watching.run, watching.folder = run.id, str(run.folder)
    listeners = (*watching.listeners, log_run_events(run.id))
    async with DiskJournal(run.folder, listeners=listeners) as journal:
        pristine = await _begun(journal, commission, tree)
        undertaking = _ActiveRun(
            run=run,
            journal=journal,
            commission=commission,
            settings=settings,
            watching=watching,
            pristine=pristine,
            lent=lent,
        )
        return await undertaking.execute()


async def _begun(journal: DiskJournal, commission: Commission, tree: Tree | None) -> Tree:
    """Return the workspace at the start of the run, and store it on the first call."""
    kept = await journal.recall(PRISTINE)
    if kept is not None:
        withheld = WITHHELD.validate_python(kept.get("withheld", ()))
        return replace(await journal.load_tree(kept["tree"]), withheld=withheld)
    # A run that stopped before it stored the workspace reads it now.
    tree = tree or await _untouched(commission)
    withheld = WITHHELD.dump_python(tree.withheld, mode="json")
    await journal.keep(PRISTINE, {"tree": await journal.store_tree(tree), "withheld": withheld})
    return tree


async def _untouched(commission: Commission) -> Tree:
    workspace = commission.workspace
    if workspace is None:
        if commission.tests:
            raise UsageError("tests need a workspace that has them", hint="name the workspace")
        if not os.access(commission.parent, os.W_OK | os.X_OK):
            raise UsageError(
                f"no folder can be made in {str(commission.parent)!r}",
                hint="go elsewhere, or name a folder with --workspace",
            )
        return Tree()
    if not workspace.is_dir():
        raise UsageError(
            f"there is no folder {str(workspace)!r}",
            hint="create it, or name one that exists",
        )
    _check_destination(workspace)
    include = included_paths(workspace, commission.include)
    # Files that are listed as tests are included even if git ignores them.
    tests = (path_within(workspace, name) for name in commission.tests)
    files = tuple(path for path in tests if path and (workspace / path).is_file())
    read = partial(
        read_workspace, workspace, exclude=commission.exclude, include=(*include, *files)
    )
    return await anyio.to_thread.run_sync(read)


def _check_destination(workspace: Path) -> None:
    """Check before any work that the result can be delivered."""
    place = workspace / CERTIFICATES
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise UsageError(
            f"{str(place)!r} is a link or a file; certificates are written into a folder there",
            hint="move it away",
        )
    if not os.access(workspace, os.W_OK | os.X_OK):
        raise UsageError(
            f"the workspace {str(workspace)!r} cannot be written",
            hint="work on a copy of it",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ActiveRun:
    """A run in progress."""

    run: Run
    journal: DiskJournal
    commission: Commission
    settings: Settings
    watching: RunCallbacks
    pristine: Tree
    lent: Lent | None

    async def execute(self) -> RunResult:
        async with self._open_parts() as parts:
            ended = await pursue(parts, self.run.folder / CHECKPOINTS)
            outcome = ended.outcome
            tree = self.pristine
            if outcome.tree != tree.digest:
                tree = await self.journal.load_tree(outcome.tree)
            self.watching.diff = unified_diff(self.pristine, tree)
            if outcome.accepted:
                outcome = await self._hand_over(parts, ended, tree)
            self.journal.emit(RunEnded(outcome=outcome), key=f"ended.{outcome.attempts}")
        return outcome

    @asynccontextmanager
    async def _open_parts(self) -> AsyncGenerator[RunDeps]:
        commission, settings, watching = self.commission, self.settings, self.watching
        used = self._used()
        opening = OpenOptions(
            meter=build_meter(self._what_is_left(used)),
            answered=used.calls,
            on_notice=watching.on_notice,
            on_progress=watching.on_progress,
        )
        kept = await self.journal.recall(MODEL)
        name = kept["name"] if kept is not None else commission.model
        sandbox = await self._sandbox_settings()
        lent = self.lent
        async with (
            nullcontext(lent.model)
            if lent and lent.model
            else open_model(name, settings=settings.models, opening=opening) as model,
            nullcontext(lent.backend)
            if lent
            else open_backend(sandbox, on_notice=watching.on_notice) as backend,
            open_memory(
                commission.memory,
                settings,
                project=str(commission.workspace or ""),
                on_notice=watching.on_notice,
            ) as memory,
        ):
            watching.local = model.facts.local
            if kept is None:
                await self.journal.keep(MODEL, model_to_json(model))
            yield RunDeps(
                run=self.run.id,
                goal=goal_for(self.run.request.goal, commission, model.facts),
                pristine=self.pristine,
                model=model,
                backend=backend,
                equipment=SandboxSpec(packages=sandbox.packages, hosts=sandbox.hosts),
                limits=limits_of(settings.agent),
                journal=self.journal,
                tools=WORKSPACE_TOOLS,
                screen=build_screen(settings.screening),
                screening=commission.screening,
                memory=memory,
                memory_use=commission.memory,
                workspace=str(self._destination.absolute()),
            )

    async def _sandbox_settings(self) -> SandboxSettings:
        """Return the sandbox settings with the run's packages, the same after a resume."""
        wanted = {"packages": self.commission.packages, "hosts": self.commission.hosts}
        sandbox = self.settings.sandbox.model_copy(update=wanted)
        kept = await self.journal.recall(PACKAGES)
        if kept is not None:
            return sandbox.model_copy(update={"packages": tuple(kept["pins"])})
        sandbox = await pin_packages(sandbox)
        if sandbox.packages:
            await self.journal.keep(PACKAGES, {"pins": list(sandbox.packages)})
        return sandbox

    @property
    def _destination(self) -> Path:
        """The folder for accepted files."""
        return self.commission.workspace or self.commission.parent / self.run.id

    def _used(self) -> Usage:
        """Return the usage before this start, from the stored replies."""
        used = Usage()
        for _, reply in self.journal.kept_under(REPLIES):
            used += REPLY.validate_python(reply).usage
        return used

    def _what_is_left(self, used: Usage) -> BudgetSettings:
        """Return the remaining budget: a cap applies to the whole run, including resumes.

        Raises:
            BudgetExceededError: If nothing remains.
        """
        caps, lent = self.commission, self.lent
        usd = _lower(caps.budget_usd, lent.most_usd if lent else None)
        tokens = _lower(caps.budget_tokens, lent.most_tokens if lent else None)
        return BudgetSettings(
            usd=None if usd is None else max(0.0, usd - (used.cost_usd or 0.0)),
            tokens=_left("tokens", tokens, used.input_tokens + used.output_tokens),
            calls=_left("calls to a model", caps.budget_calls, used.calls),
        )

    async def _hand_over(self, parts: RunDeps, ended: Ended, tree: Tree) -> RunResult:
        """Write the accepted files and their certificate: exactly the verified files."""
        done = await self.journal.recall(HANDED_OVER)
        if done is not None:
            return replace(ended.outcome, certificate=done["certificate"])
        workspace, folder = self.commission.workspace, self._destination
        certificate = await anyio.to_thread.run_sync(self._certificate, parts, ended, tree)
        path = self.run.folder / _CERTIFICATE
        if workspace is None or self.watching.confirm(str(workspace.absolute())):
            if workspace is None:
                _make_folder(folder)
            await anyio.to_thread.run_sync(write_changes, folder, self.pristine, tree)
            path = folder / CERTIFICATES / f"{self.run.id}.certificate.json"
        await anyio.to_thread.run_sync(write_certificate, path, certificate)
        await self.journal.keep(HANDED_OVER, {"certificate": str(path)})
        return replace(ended.outcome, certificate=str(path))

    def _certificate(self, parts: RunDeps, ended: Ended, tree: Tree) -> Certificate:
        verdict = ended.outcome.verdict
        assert verdict is not None  # noqa: S101 - for the type checker: what was accepted has one
        backend = parts.backend
        proof = Proof(
            run=self.run.id,
            goal=parts.goal,
            checks=ended.plan.checks,
            protected=ended.plan.protected,
            pristine=self.pristine,
            tree=tree,
            verdict=verdict,
            environment=describe_environment(
                backend=backend.name,
                isolation=backend.isolation.value,
                given=parts.equipment.packages,
                hosts=parts.equipment.hosts,
            ),
            model=parts.model.name,
            usage=ended.outcome.usage,
        )
        return build_certificate(proof, signing_key(self.settings.state_dir))


def _lower(one: _N | None, other: _N | None) -> _N | None:
    return min((cap for cap in (one, other) if cap is not None), default=None)


def _left(what: str, cap: int | None, used: int) -> int | None:
    if cap is not None and cap <= used:
        raise BudgetExceededError(f"the {what} of this run are used up")
    return None if cap is None else cap - used


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the folder {str(folder)!r} cannot be made: {error.strerror}",
            hint="`assay show RUN --files DIR` writes the result to another one",
        ) from error


def goal_for(goal: Goal, commission: Commission, facts: ModelFacts) -> Goal:
    """Return the goal; a local model gets more attempts if the user left the number open."""
    if commission.attempts_left_open and facts.local:
        return replace(goal, effort=replace(goal.effort, attempts=_SMALL_ATTEMPTS))
    return goal
