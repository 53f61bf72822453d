"""What a person asks for, as it is written down so that the run can be taken up again."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from assay.contracts.errors import JournalError, UsageError
from assay.contracts.events import RunEvent
from assay.contracts.goal import AcceptanceCriteria, Goal, MemoryUse, RunLimits
from assay.contracts.workspace import Tree
from assay.storage.read_workspace import path_within
from assay.storage.withheld_files import IGNORED
from assay.verify.commands import split_command


@dataclass(frozen=True, slots=True, kw_only=True)
class Commission:
    """One goal with everything that was said about it."""

    statement: str
    workspace: Path | None = None
    """None: a new folder, named after the run."""
    parent: Path = field(default_factory=Path.cwd)
    """Where that new folder is made."""
    checks: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    """Files or folders, from the workspace."""
    allowed: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Globs of what is left out of the workspace: neither read nor shown nor changed."""
    include: tuple[str, ...] = ()
    """Files or folders that are read although git ignores them or they look like secrets."""
    model: str = "auto"
    effort: RunLimits = field(default_factory=RunLimits)
    attempts_left_open: bool = False
    """Nobody said how many: a small model, whose attempts cost nothing, gets more."""
    policy: Literal["off", "warn", "block"] = "warn"
    memory: MemoryUse = "all"
    budget_usd: float | None = None
    budget_tokens: int | None = None
    budget_calls: int | None = None
    packages: tuple[str, ...] = ()
    """Python packages that the code may use."""
    hosts: tuple[str, ...] = ()
    """Hosts that it may reach."""


_TEST: Final = re.compile(
    r"conftest\.py|test_.*\.py|.*_test\.(?:py|go|rb|cc|cpp)|.*[._](?:test|spec)\.[cm]?[jt]sx?"
    r"|.*Tests?\.java"
)
"""Names of files that runners take for tests: a run must not do without one of them in silence."""
_COMMISSION: Final = TypeAdapter(Commission)


def commission_to_json(commission: Commission) -> Mapping[str, Any]:
    """Turn a commission into what `run.json` keeps."""
    return _COMMISSION.dump_python(commission, mode="json")


def commission_from_json(fields: Mapping[str, Any]) -> Commission:
    """Read a commission back.

    Raises:
        JournalError: If it is damaged.
    """
    try:
        return _COMMISSION.validate_python(fields)
    except ValidationError as error:
        raise JournalError("what was asked for in this run cannot be read any more") from error


def goal_of(commission: Commission, tree: Tree) -> Goal:
    """Build the goal, with the test files named one by one.

    Raises:
        UsageError: If a test is not in the workspace, a check is no command, or nothing in the
            workspace can match what may be changed.
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
    """Who looks on while a run goes on, and what they are told besides the events."""

    listeners: tuple[Callable[[RunEvent], None], ...] = ()
    confirm: Callable[[str], bool] = lambda _: True
    """Asked, with the folder's name, before a folder that was there already is changed."""
    on_notice: Callable[[str], None] = lambda _: None
    on_progress: Callable[[int, int, str], None] = lambda _done, _all, _what: None
    """Told of bytes fetched, if a model has to be fetched first."""
    wait: bool = False
    """Wait for another run that works on the same folder, rather than be refused."""
    run: str = ""
    diff: str = ""
    folder: str = ""
    """Where the run is kept."""
    local: bool = False
    """Whether the model ran on this machine."""
