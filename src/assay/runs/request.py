"""Requests for runs: built from options, checked against the workspace, and resolved."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from assay.contracts.errors import UsageError
from assay.contracts.events import RunEvent
from assay.contracts.execution import Limits
from assay.contracts.goal import RunLimits, RunRequest, RunSpec
from assay.contracts.messages import ModelInfo
from assay.contracts.workspace import Tree
from assay.settings.load import AgentSettings, Settings
from assay.storage.read_workspace import path_within
from assay.storage.withheld_files import IGNORED
from assay.verify.parse_command import split_command

_TEST: Final = re.compile(
    r"conftest\.py|test_.*\.py|.*_test\.(?:py|go|rb|cc|cpp)|.*[._](?:test|spec)\.[cm]?[jt]sx?"
    r"|.*Tests?\.java"
)
"""File names that runners treat as tests; no listed folder may have a withheld one."""
_LOCAL_ATTEMPTS: Final = 16
"""For a model on this machine, if the user left the number open."""


def build_request(settings: Settings, goal: str, **given: Any) -> RunRequest:
    """Build a request; options that are None come from the settings.

    `given` are fields of `RunRequest`, and fields of `RunLimits` that replace single limits.
    `packages` and `hosts` are added to those of the settings.

    Raises:
        UsageError: If the goal is empty, or a limit is not positive.
    """
    agent, budget, sandbox = settings.agent, settings.models.budget, settings.sandbox
    chosen = (given.get("limits"), given.get("attempts"), agent.attempts)
    limits: RunLimits = given.pop("limits", None) or RunLimits(
        attempts=agent.attempts or RunLimits().attempts,
        wall_s=agent.timeout_s,
        check_timeout_s=agent.check_timeout_s,
        baseline_timeout_s=agent.baseline_timeout_s,
    )
    options: dict[str, Any] = {
        "model": settings.models.default,
        "attempts_left_open": all(choice is None for choice in chosen),
        "screening": agent.screening,
        "memory": agent.memory,
        "budget_usd": budget.usd,
        "budget_tokens": budget.tokens,
        "budget_calls": budget.calls,
    }
    single: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None:
            (single if name in RunLimits.__dataclass_fields__ else options)[name] = value
    options["packages"] = (*sandbox.packages, *options.get("packages", ()))
    options["hosts"] = (*sandbox.hosts, *options.get("hosts", ()))
    return RunRequest(goal=goal, limits=replace(limits, **single), **options)


def resolve_request(request: RunRequest, tree: Tree) -> RunRequest:
    """Check a request against the files of its workspace, and list each test file.

    Raises:
        UsageError: If the workspace lacks a test, a check is not a command, or an allowed glob
            cannot match any path in the workspace.
    """
    for check in request.checks:
        split_command(check)
    for glob in request.allowed:
        if not glob.strip("/ ") or glob.startswith(("/", "~")) or ".." in PurePosixPath(glob).parts:
            raise UsageError(
                f"--allow {glob!r} names nothing in the workspace",
                hint="give a glob of paths from the workspace, such as 'src/*.py'",
            )
    # An absolute path, because a resume may start in another folder.
    workspace = request.workspace.absolute() if request.workspace else None
    found = (_tests_at(name, workspace, tree) for name in request.tests)
    tests = dict.fromkeys(name for names in found for name in names)
    return replace(request, workspace=workspace, tests=tuple(tests))


def spec_of(request: RunRequest, info: ModelInfo) -> RunSpec:
    """Return the spec of a resolved request for this model."""
    limits = request.limits
    if request.attempts_left_open and info.small:
        limits = replace(limits, attempts=_LOCAL_ATTEMPTS)
    return RunSpec(
        goal=request.goal,
        checks=request.checks,
        protected=tuple(
            dict.fromkeys(PurePosixPath(name.partition("::")[0]) for name in request.tests)
        ),
        required=request.tests,
        allowed=request.allowed,
        limits=limits,
    )


def _tests_at(name: str, workspace: Path | None, tree: Tree) -> tuple[str, ...]:
    file, separator, test = name.partition("::")
    paths = _files_at(file, workspace, tree)
    if not separator:
        return tuple(map(str, paths))
    path = paths[0] if paths else PurePosixPath()
    if not test or path.suffix != ".py" or len(paths) > 1:
        raise UsageError(
            f"{name!r} is no test of pytest",
            hint="give --tests as a file, a folder, or FILE.py::TEST",
        )
    return (f"{path}::{test}",)


def _files_at(name: str, workspace: Path | None, tree: Tree) -> tuple[PurePosixPath, ...]:
    path = PurePosixPath(name)
    if workspace is not None:
        path = path_within(workspace, name) or path
    if path in tree.links:
        raise UsageError(
            f"the test {name!r} is a link, and links are not followed",
            hint="put the file itself into the workspace",
        )
    if why := tree.why_withheld(path):
        raise UsageError(
            f"the test {name!r} is withheld: {why}", hint=f"add --include {name!r} to use it"
        )
    for one in tree.withheld:
        inside = path in one.path.parents and one.why != IGNORED
        if inside and _TEST.fullmatch(one.path.name):
            raise UsageError(
                f"{name!r} has the test {str(one.path)!r}, which is withheld: {one.why}",
                hint=f"add --include '{one.path}' to use it, or --exclude '{one.path}'",
            )
    found = tuple(file for file in sorted(tree.files) if file == path or path in file.parents)
    if not found or not name.strip():
        raise UsageError(
            f"there is no test {name!r} in the workspace",
            hint="give --tests as a file or folder of the workspace, or as FILE.py::TEST, once for "
            "each",
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCallbacks:
    """Callbacks of the caller of a run."""

    listeners: tuple[Callable[[RunEvent], None], ...] = ()
    confirm: Callable[[str], bool] = lambda _: True
    """Asks, with the folder's name, before an existing folder is changed."""
    on_stored: Callable[[str], None] = lambda _: None
    """Receives the run's ID when the run can be resumed, and "" if it was deleted again."""
    on_notice: Callable[[str], None] = lambda _: None
    on_progress: Callable[[int, int, str], None] = lambda _done, _all, _what: None
    """Receives the bytes downloaded so far, if a model has to be downloaded."""
    wait: bool = False
    """Wait for another run on the same folder instead of failing."""


def limits_of(agent: AgentSettings) -> Limits:
    """Return the limits of one execution in a run, from the settings."""
    return Limits(
        wall_s=agent.check_timeout_s,
        cpu_s=2 * agent.check_timeout_s,
        memory_mb=agent.memory_mb,
        disk_mb=agent.disk_mb,
        processes=agent.processes,
    )
