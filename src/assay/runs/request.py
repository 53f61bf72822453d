"""The user's request for a run, which is stored so that the run can be resumed."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from assay.contracts.errors import JournalError, UsageError
from assay.contracts.events import RunEvent
from assay.contracts.execution import Limits
from assay.contracts.goal import AcceptanceCriteria, Goal, MemoryUse, RunLimits
from assay.contracts.workspace import Tree
from assay.settings.load import AgentSettings
from assay.storage.read_workspace import path_within
from assay.storage.withheld_files import IGNORED
from assay.verify.parse_command import split_command


@dataclass(frozen=True, slots=True, kw_only=True)
class Commission:
    """One goal with all its options."""

    statement: str
    workspace: Path | None = None
    """None: a new folder, named after the run."""
    parent: Path = field(default_factory=Path.cwd)
    """The parent of that new folder."""
    checks: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    """Files or folders, relative to the workspace."""
    allowed: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Globs of files that the run ignores: it does not read, show or change them."""
    include: tuple[str, ...] = ()
    """Files or folders to read although git ignores them or they look like secrets."""
    model: str = "auto"
    effort: RunLimits = field(default_factory=RunLimits)
    attempts_left_open: bool = False
    """Whether the user left the number open: a local model then gets more attempts."""
    screening: Literal["off", "warn", "block"] = "warn"
    memory: MemoryUse = "all"
    budget_usd: float | None = None
    budget_tokens: int | None = None
    budget_calls: int | None = None
    packages: tuple[str, ...] = ()
    """Python packages for the sandboxes."""
    hosts: tuple[str, ...] = ()
    """Hosts that the sandboxes may reach."""


_TEST: Final = re.compile(
    r"conftest\.py|test_.*\.py|.*_test\.(?:py|go|rb|cc|cpp)|.*[._](?:test|spec)\.[cm]?[jt]sx?"
    r"|.*Tests?\.java"
)
"""File names that runners treat as tests; no listed folder may have a withheld one."""
_COMMISSION: Final = TypeAdapter(Commission)


def commission_to_json(commission: Commission) -> Mapping[str, Any]:
    """Convert a request into the stored form in `run.json`."""
    return _COMMISSION.dump_python(commission, mode="json")


def commission_from_json(fields: Mapping[str, Any]) -> Commission:
    """Read a request from its stored form.

    Raises:
        JournalError: If the stored form is damaged.
    """
    try:
        return _COMMISSION.validate_python(fields)
    except ValidationError as error:
        raise JournalError("what was asked for in this run cannot be read any more") from error


def goal_of(commission: Commission, tree: Tree) -> Goal:
    """Build the goal, with each test file listed.

    Raises:
        UsageError: If the workspace lacks a test, a check is not a command, or an allowed glob
            cannot match any path in the workspace.
    """
    for check in commission.checks:
        split_command(check)
    for glob in commission.allowed:
        _check_glob(glob)
    protected: dict[PurePosixPath, None] = {}
    for name in commission.tests:
        protected.update(dict.fromkeys(_files_at(name, commission.workspace, tree)))
    return Goal(
        statement=commission.statement,
        acceptance=AcceptanceCriteria(checks=commission.checks, protected=tuple(protected)),
        allowed=commission.allowed,
        effort=commission.effort,
    )


def _check_glob(glob: str) -> None:
    if not glob.strip("/ ") or glob.startswith(("/", "~")) or ".." in PurePosixPath(glob).parts:
        raise UsageError(
            f"--allow {glob!r} names nothing in the workspace",
            hint="give a glob of paths from the workspace, such as 'src/*.py'",
        )


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
            hint="give --tests as a file or folder of the workspace, once for each"
            + ("; name single tests with --check 'pytest FILE::TEST'" if "::" in name else ""),
        )
    return found


@dataclass(slots=True, kw_only=True)
class RunCallbacks:
    """Callbacks and options of the caller that watches a run; `start_run` fills in the results."""

    listeners: tuple[Callable[[RunEvent], None], ...] = ()
    confirm: Callable[[str], bool] = lambda _: True
    """Asks, with the folder's name, before an existing folder is changed."""
    on_notice: Callable[[str], None] = lambda _: None
    on_progress: Callable[[int, int, str], None] = lambda _done, _all, _what: None
    """Receives the bytes downloaded so far, if a model has to be downloaded."""
    wait: bool = False
    """Wait for another run on the same folder instead of failing."""
    run: str = ""
    diff: str = ""
    folder: str = ""
    """The folder with the run's files."""
    local: bool = False
    """Whether the model ran on this machine."""


def limits_of(agent: AgentSettings) -> Limits:
    """Return the limits of one execution in a run, from the settings."""
    return Limits(
        wall_s=agent.check_timeout_s,
        cpu_s=2 * agent.check_timeout_s,
        memory_mb=agent.memory_mb,
        disk_mb=agent.disk_mb,
        processes=agent.processes,
    )
