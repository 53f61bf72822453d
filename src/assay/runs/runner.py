"""Carry out a run: create it, open its dependencies and deliver accepted files.

The journal stores values for a later resume under the keys that are defined here.
"""

import os
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio
from pydantic import TypeAdapter

from assay.agent.context import RunDeps
from assay.agent.graph import run_graph
from assay.agent.instructions import MAX_CHARS, NAMES, ProjectInstructions, find_instructions
from assay.agent.state import REPLY, Plan
from assay.contracts.errors import BudgetExceededError, MissingExtraError, PackageError, UsageError
from assay.contracts.events import RunEnded
from assay.contracts.goal import RunRequest, RunResult
from assay.contracts.messages import ModelInfo, Usage
from assay.contracts.ports import Model, SandboxBackend
from assay.contracts.workspace import Tree, Withheld
from assay.models.open import OpenOptions, build_meter
from assay.runs.approved_tools import open_run_tools
from assay.runs.delivery import (
    CERTIFICATE,
    DELIVERED,
    check_certificate_folder,
    check_commit,
    commit_result,
    destination,
    write_result,
)
from assay.runs.environment import (
    ProjectEnvironment,
    environment_from_json,
    generated_files,
    prepare_environment,
)
from assay.runs.history import RunHistory
from assay.runs.request import RunCallbacks, limits_of, resolve_request, spec_of
from assay.settings.load import BudgetSettings, SandboxSettings, Settings
from assay.storage.certificates import (
    Proof,
    build_certificate,
    describe_environment,
    write_certificate,
)
from assay.storage.journal import DiskJournal
from assay.storage.lock import hold_workspace
from assay.storage.read_workspace import included_paths, path_within
from assay.storage.run_store import Run, RunStore
from assay.storage.signing_keys import SigningKey, signing_key
from assay.telemetry.events import log_run_events
from assay.text.diffs import unified_diff
from assay.tools.workspace import WORKSPACE_TOOLS
from assay.wiring import (
    build_screen,
    check_extras,
    open_backend,
    open_layers,
    open_memory,
    open_model,
)

PRISTINE: Final = "pristine"
"""The workspace at the start of the run."""
MODEL: Final = "model"
"""The model: a resumed run keeps it, even if `auto` would select another one now."""
INSTRUCTIONS: Final = "instructions"
"""The project's instructions: a resumed run keeps them."""
PACKAGES: Final = "packages"
"""The exact package versions for the sandboxes of this run."""
REPLIES: Final = "reply:"
"""Prefix of the model's replies, which have been paid for."""

MODEL_INFO: Final = TypeAdapter(ModelInfo)
WITHHELD: Final = TypeAdapter(tuple[Withheld, ...])
"""The files that the run cannot see, stored with `PRISTINE`."""
_N = TypeVar("_N", int, float)

CHECKPOINTS: Final = "checkpoints.sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """Resources that the caller opens and closes, shared by many runs."""

    backend: SandboxBackend
    model: Model | None = None
    """None: each run opens its own model."""
    most_tokens: int | None = None
    """The quota's remaining tokens, a cap for the whole run in addition to its own cap."""
    most_usd: float | None = None


async def create_run(request: RunRequest, settings: Settings) -> Run:
    """Store a run without starting it; `resume_run` starts it, in this process or another one.

    Raises:
        UsageError: If the request is invalid.
        JournalError: If the run cannot be written.
    """
    tree = await _read_untouched(request, settings)
    return RunStore(settings.state_dir).create(resolve_request(request, tree))


async def start_run(
    request: RunRequest, settings: Settings, callbacks: RunCallbacks, *, lent: Lent | None = None
) -> RunResult:
    """Start a run and carry it out; resources that are not in `lent` are opened for it.

    Raises:
        UsageError: If the request is invalid.
        AssayError: If a component fails; completed work is kept, and the run can be resumed.
    """
    if lent is None:
        _check_extras(request, settings)
    store = RunStore(settings.state_dir)
    async with _hold_workspace(request, settings, callbacks) as note:
        tree = await _read_untouched(request, settings)
        resolved = resolve_request(request, tree)
        await check_commit(resolved, tree)
        run = store.create(resolved)
        note(run.id)
        try:
            return await _execute(run, settings, callbacks, tree=tree, lent=lent)
        except (UsageError, MissingExtraError, PackageError):
            async with DiskJournal(run.folder) as journal:
                answered = any(journal.kept_under(REPLIES))
            if not answered:
                # The request was invalid and no model was paid for, so there is nothing to resume.
                store.delete(run.id)
                callbacks.on_stored("")
            raise


async def resume_run(
    name: str, settings: Settings, callbacks: RunCallbacks, *, lent: Lent | None = None
) -> RunResult:
    """Continue a stopped run, for any reason of the stop.

    Raises:
        UsageError: If there is no such run, or another process works on it.
        AssayError: As for `start_run`.
    """
    run = RunStore(settings.state_dir).open(name)
    if lent is None:
        _check_extras(run.request, settings)
    async with _hold_workspace(run.request, settings, callbacks) as note:
        note(run.id)
        return await _execute(run, settings, callbacks, lent=lent)


def _check_extras(request: RunRequest, settings: Settings) -> None:
    check_extras(
        "carrying out a goal", settings, "agent", model=request.model, packages=request.packages
    )


def _hold_workspace(
    request: RunRequest, settings: Settings, callbacks: RunCallbacks
) -> AbstractAsyncContextManager[Callable[[str], None]]:
    return hold_workspace(
        request.workspace, settings.state_dir, wait=callbacks.wait, on_notice=callbacks.on_notice
    )


async def _execute(
    run: Run,
    settings: Settings,
    callbacks: RunCallbacks,
    *,
    tree: Tree | None = None,
    lent: Lent | None = None,
) -> RunResult:
    """Carry out a stored run from wherever it stopped; `tree` is the workspace if just read."""
    callbacks.on_stored(run.id)
    listeners = (*callbacks.listeners, log_run_events(run.id))
    async with DiskJournal(run.folder, listeners=listeners) as journal:
        pristine = await _store_untouched(journal, run.request, settings, tree)
        async with _open_deps(run, settings, callbacks, journal, pristine, lent) as deps:
            result, plan = await run_graph(deps, run.folder / CHECKPOINTS)
            tree, trouble = pristine, None
            if result.tree != pristine.digest:
                tree = await journal.load_tree(result.tree)
            if result.accepted:
                result, trouble = await _deliver(run, settings, callbacks, deps, result, plan, tree)
            journal.emit(RunEnded(outcome=result), key=f"ended.{result.attempts}")
            if trouble is not None:
                raise trouble
    return replace(
        result,
        diff=unified_diff(pristine, tree),
        folder=str(run.folder),
        local=deps.model.info.local,
    )


async def _store_untouched(
    journal: DiskJournal, request: RunRequest, settings: Settings, tree: Tree | None
) -> Tree:
    """Return the workspace at the start of the run, and store it on the first call."""
    kept = await journal.recall(PRISTINE)
    if kept is not None:
        withheld = WITHHELD.validate_python(kept.get("withheld", ()))
        return replace(await journal.load_tree(kept["tree"]), withheld=withheld)
    # A run that stopped before it stored the workspace reads it now.
    tree = tree or await _read_untouched(request, settings)
    withheld = WITHHELD.dump_python(tree.withheld, mode="json")
    await journal.keep(PRISTINE, {"tree": await journal.store_tree(tree), "withheld": withheld})
    return tree


async def _read_untouched(request: RunRequest, settings: Settings) -> Tree:
    """Read the workspace; check before any work that the result can be delivered."""
    workspace = request.workspace
    if workspace is None:
        if request.tests:
            raise UsageError("tests need a workspace that has them", hint="name the workspace")
        if not os.access(request.parent, os.W_OK | os.X_OK):
            raise UsageError(
                f"no folder can be made in {str(request.parent)!r}",
                hint="go elsewhere, or name a folder with --workspace",
            )
        return Tree()
    if not workspace.is_dir():
        raise UsageError(
            f"there is no folder {str(workspace)!r}",
            hint="create it, or name one that exists",
        )
    check_certificate_folder(workspace)
    if not os.access(workspace, os.W_OK | os.X_OK):
        raise UsageError(
            f"the workspace {str(workspace)!r} cannot be written",
            hint="work on a copy of it",
        )
    include = included_paths(workspace, request.include)
    # Files that are listed as tests are included even if git ignores them.
    tests = (path_within(workspace, name.partition("::")[0]) for name in request.tests)
    files = tuple(path for path in tests if path and (workspace / path).is_file())
    included = (*include, *files, *generated_files(request.env, workspace))
    read = partial(
        open_layers(settings).capture,
        workspace,
        exclude=request.exclude,
        include=included,
        secret_names=settings.workspace.secret_names,
    )
    return await anyio.to_thread.run_sync(read)


@asynccontextmanager
async def _open_deps(
    run: Run,
    settings: Settings,
    callbacks: RunCallbacks,
    journal: DiskJournal,
    pristine: Tree,
    lent: Lent | None,
) -> AsyncGenerator[RunDeps]:
    request = run.request
    # The usage before this start: a cap applies to the whole run, including resumes.
    used = Usage()
    for _, reply in journal.kept_under(REPLIES):
        used += REPLY.validate_python(reply).usage
    usd = _lower(request.budget_usd, lent.most_usd if lent else None)
    tokens = _lower(request.budget_tokens, lent.most_tokens if lent else None)
    left = BudgetSettings(
        usd=None if usd is None else max(0.0, usd - (used.cost_usd or 0.0)),
        tokens=_left("tokens", tokens, used.input_tokens + used.output_tokens),
        calls=_left("calls to a model", request.budget_calls, used.calls),
    )
    opening = OpenOptions(
        meter=build_meter(left),
        answered=used.calls,
        on_notice=callbacks.on_notice,
        on_progress=callbacks.on_progress,
    )
    kept = await journal.recall(MODEL)
    name = kept["name"] if kept is not None else request.model
    environment = await _environment_of(settings.sandbox, request, journal, callbacks.on_notice)
    async with (
        nullcontext(lent.model)
        if lent and lent.model
        else open_model(name, settings=settings.models, opening=opening) as model,
        nullcontext(lent.backend)
        if lent
        else open_backend(
            environment.sandbox, project=environment.project, on_notice=callbacks.on_notice
        ) as backend,
        open_memory(
            request.memory,
            settings,
            project=str(request.workspace or ""),
            on_notice=callbacks.on_notice,
        ) as memory,
        # Callers that lend their sandboxes, such as the server, have no tools of a user.
        nullcontext(WORKSPACE_TOOLS)
        if lent
        else open_run_tools(settings, model.info, request.workspace, callbacks.on_notice) as tools,
    ):
        if kept is None:
            info = MODEL_INFO.dump_python(model.info, mode="json")
            await journal.keep(MODEL, {"name": model.name, "facts": info})
        yield RunDeps(
            run=run.id,
            spec=spec_of(request, model.info),
            pristine=pristine,
            model=model,
            backend=backend,
            instructions=await _project_instructions(journal, request, pristine),
            equipment=environment.equipment,
            limits=limits_of(settings.agent),
            journal=journal,
            tools=tools,
            screen=build_screen(settings.screening),
            screening=request.screening,
            memory=memory,
            memory_use=request.memory,
            workspace=str(destination(run).absolute()),
            history=RunHistory(
                journal=journal,
                workspace=request.workspace,
                pristine=pristine,
                on_notice=callbacks.on_notice,
                secret_names=settings.workspace.secret_names,
            ).load,
        )


async def _project_instructions(
    journal: DiskJournal, request: RunRequest, pristine: Tree
) -> ProjectInstructions:
    """Return the project's instructions: from its files, or from Assay's folder next to them."""
    kept = await journal.recall(INSTRUCTIONS)
    if kept is None:
        own = NAMES[-1]
        read = partial(_read_regular, (request.workspace or request.parent) / own)
        text = await anyio.to_thread.run_sync(read) if request.workspace else ""
        found = find_instructions(pristine, {own: text})
        kept = {"path": found.path, "text": found.text}
        await journal.keep(INSTRUCTIONS, kept)
    return ProjectInstructions(path=kept["path"], text=kept["text"])


def _read_regular(path: Path) -> str:
    """Return the beginning of a text file; empty if it is missing, a link or no text."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
            # Longer text is shortened, so a little more than its limit suffices.
            return file.read(2 * MAX_CHARS).decode(errors="replace")
    except OSError:
        return ""


async def _environment_of(
    sandbox: SandboxSettings,
    request: RunRequest,
    journal: DiskJournal,
    on_notice: Callable[[str], None],
) -> ProjectEnvironment:
    """Return the environment of the run's sandboxes, the same after a resume."""
    sandbox = sandbox.model_copy(update={"packages": request.packages, "hosts": request.hosts})
    kept = await journal.recall(PACKAGES)
    if kept is not None:
        return environment_from_json(sandbox, kept)
    environment = await prepare_environment(sandbox, request.env, request.workspace, on_notice)
    if environment.sandbox.packages or environment.project or environment.mounted:
        await journal.keep(PACKAGES, environment.to_json())
    return environment


def _lower(one: _N | None, other: _N | None) -> _N | None:
    return min((cap for cap in (one, other) if cap is not None), default=None)


def _left(what: str, cap: int | None, used: int) -> int | None:
    if cap is not None and cap <= used:
        raise BudgetExceededError(f"the {what} of this run are used up")
    return None if cap is None else cap - used


async def _deliver(
    run: Run,
    settings: Settings,
    callbacks: RunCallbacks,
    deps: RunDeps,
    result: RunResult,
    plan: Plan,
    tree: Tree,
) -> tuple[RunResult, UsageError | None]:
    """Write the accepted files and their certificate: exactly the verified files.

    Returns the result with its certificate, and why the change was not written or committed.
    """
    done = await deps.journal.recall(DELIVERED)
    if done is not None:
        commit = done.get("commit", "")
        return replace(result, certificate=done["certificate"], commit=commit), None
    assert result.verdict is not None  # noqa: S101 - for the type checker: what was accepted has one
    backend = deps.backend
    environment = await deps.journal.recall(PACKAGES) or {}
    proof = Proof(
        run=run.id,
        spec=deps.spec,
        checks=plan.checks,
        protected=plan.protected,
        pristine=deps.pristine,
        tree=tree,
        verdict=result.verdict,
        environment=await anyio.to_thread.run_sync(
            partial(
                describe_environment,
                backend=backend.name,
                isolation=backend.isolation.value,
                equipment=deps.equipment,
                mounted=tuple(environment.get("mounted", ())),
            )
        ),
        model=deps.model.name,
        usage=result.usage,
    )
    key = signing_key(settings.state_dir)
    await anyio.to_thread.run_sync(_certify, run, proof, key)
    request, path, commit = run.request, run.folder / CERTIFICATE, ""
    where = "" if request.workspace is None else str(request.workspace.absolute())
    if request.branch:
        where = f"the branch {request.branch!r} of {where}"
    if request.workspace is None or callbacks.confirm(where):
        try:
            if not request.branch:
                path = await write_result(run, deps.journal, deps.pristine, tree)
            if request.commit or request.branch:
                commit = await commit_result(run, deps.journal, deps.pristine, tree, result.verdict)
        except UsageError as error:
            return replace(result, certificate=str(path)), error
    await deps.journal.keep(DELIVERED, {"certificate": str(path), "commit": commit})
    return replace(result, certificate=str(path), commit=commit), None


def _certify(run: Run, proof: Proof, key: SigningKey) -> None:
    """Sign a certificate once; a commit may already name its digest."""
    path = run.folder / CERTIFICATE
    if not path.is_file():
        write_certificate(path, build_certificate(proof, key))
