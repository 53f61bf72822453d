"""Delivery of accepted files: written into the user's folder now or later, and taken back.

The journal of the run records each step before it happens. After a crash, a second call finds
every file either as it was or as it was accepted, and finishes.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from anyio import to_thread

from assay.contracts.errors import UsageError
from assay.contracts.goal import RunRequest
from assay.contracts.jsonable import jsonable
from assay.contracts.ports import Journal
from assay.contracts.verdict import Verdict
from assay.contracts.workspace import FileChange, Tree, changes_between
from assay.files import DRAFT, write_file
from assay.runs.stored_result import stored_result
from assay.settings.load import Settings
from assay.storage.apply_changes import read_modes, write_changes
from assay.storage.certificates import copy_certificate
from assay.storage.git_commit import (
    PreparedCommit,
    check_uncommitted,
    commit_message,
    count_uncommitted,
    find_target,
    finish_commit,
    prepare_commit,
)
from assay.storage.git_repository import open_repository
from assay.storage.journal import DiskJournal
from assay.storage.lock import hold_workspace
from assay.storage.run_store import Run, RunStore
from assay.text.globs import matches

DELIVERED: Final = "delivered"
"""The path of the certificate, set after delivery: a resumed run does not deliver twice."""
_WRITTEN: Final = "written"
"""Whether the accepted files are in the user's folder, with the permissions that they had."""
_COMMIT: Final = "commit"
"""The commit that is prepared, before its branch has it."""
CERTIFICATES: Final = ".assay"
"""The folder of a workspace that has certificates."""
CERTIFICATE: Final = "certificate.json"
"""The name of the certificate in the folder of its run."""

_RULES: Final = ".gitignore"
_IGNORED: Final = (
    b"# Certificates of runs; git add -f adds one.\n*.certificate.json\n/.draft-*\n/.gitignore\n"
)
_SAVED: Final = (
    "`assay apply {0}` tries again; `assay show {0} --files DIR` writes the result to a new folder"
)
_EDITED: Final = "`assay diff {}` shows what the run wrote; take it back by hand"

Confirm = Callable[[str], None]
"""Receives the folder; raises if the user does not agree."""


def destination(run: Run) -> Path:
    """Return the folder for accepted files."""
    return run.request.workspace or run.request.parent / run.id


def _certificate(run: Run) -> Path:
    return destination(run) / CERTIFICATES / f"{run.id}.certificate.json"


def check_certificate_folder(folder: Path) -> None:
    """Check before any write that a certificate can be written into this workspace.

    Raises:
        UsageError: If a link or a file is in the way.
    """
    certificates = folder / CERTIFICATES
    if certificates.is_symlink() or (certificates.exists() and not certificates.is_dir()):
        raise UsageError(
            f"{str(certificates)!r} is a link or a file; certificates are written into a folder "
            "there",
            hint="move it away",
        )


async def write_result(run: Run, journal: Journal, before: Tree, after: Tree) -> Path:
    """Write accepted files and their certificate into the user's folder; returns the latter.

    Raises:
        UsageError: If a file was changed meanwhile or a write fails.
    """
    folder, paths = destination(run), [one.path for one in changes_between(before, after)]
    if run.request.workspace is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the folder {str(folder)!r} cannot be made: {error.strerror}",
                hint=_SAVED.format(run.id),
            ) from error
    # Permissions that an interrupted process has recorded are those before any write.
    modes = await _recorded_modes(journal, states=("writing", "undoing"))
    found = await to_thread.run_sync(read_modes, folder, paths)
    await _record(journal, "writing", {**found, **modes})
    hint = _SAVED.format(run.id)
    write = partial(write_changes, folder, before, after, owner=run.id, hint=hint)
    await to_thread.run_sync(write)
    path = _certificate(run)
    if (run.folder / CERTIFICATE).is_file():
        await to_thread.run_sync(_place_certificate, run.folder / CERTIFICATE, path)
    await _record(journal, "written", {**found, **modes})
    return path


async def _recorded_modes(journal: Journal, *, states: tuple[str, ...]) -> dict[PurePosixPath, int]:
    kept = await journal.recall(_WRITTEN)
    if kept is None or kept["state"] not in states:
        return {}
    return {PurePosixPath(path): mode for path, mode in kept["modes"].items()}


async def _record(journal: Journal, state: str, modes: Mapping[PurePosixPath, int]) -> None:
    value: dict[str, Any] = {
        "state": state,
        "modes": {str(path): mode for path, mode in modes.items()},
    }
    await journal.keep(_WRITTEN, value)


async def check_commit(request: RunRequest, tree: Tree) -> None:
    """Check before a run that its accepted change can be committed.

    Raises:
        UsageError: If git refuses, or a file that the run may change has uncommitted changes.
    """
    if not (request.commit or request.branch):
        return
    workspace = request.workspace
    if request.commit and request.branch:
        raise UsageError("--commit and --branch cannot be combined", hint="leave one out")
    if workspace is None:
        raise UsageError("a commit needs a workspace", hint="name it with --workspace")
    protected = {PurePosixPath(name) for name in request.tests}

    def may_change(path: PurePosixPath) -> bool:
        allowed = not request.allowed or matches(path, request.allowed)
        return allowed and path not in protected

    def check() -> None:
        repository = open_repository(workspace)
        target = find_target(repository, request.branch)
        check_uncommitted(repository, target, tree, may_change)

    await to_thread.run_sync(check)


async def commit_result(
    run: Run, journal: Journal, before: Tree, after: Tree, verdict: Verdict
) -> str:
    """Commit an accepted change; returns the ID of the commit.

    Raises:
        UsageError: If the branch or its files changed meanwhile, or git refuses.
    """
    request = run.request
    kept = await journal.recall(_COMMIT)
    if kept is None:
        prepared = await to_thread.run_sync(_prepare_commit, run, before, after, verdict)
        await journal.keep(_COMMIT, {"commit": jsonable(prepared)})
    else:
        prepared = PreparedCommit(**kept["commit"])

    def finish() -> None:
        finish_commit(open_repository(destination(run)), prepared, before, after)

    try:
        await to_thread.run_sync(finish)
    except UsageError as error:
        name = request.branch or "the current branch"
        raise UsageError(
            f"the commit {prepared.object_id} is ready, but {name} does not have it: {error}",
            hint=f"`git cherry-pick {prepared.object_id}` adds it to the current branch",
        ) from error
    return prepared.object_id


def _prepare_commit(run: Run, before: Tree, after: Tree, verdict: Verdict) -> PreparedCommit:
    repository = open_repository(destination(run))
    target = find_target(repository, run.request.branch)
    unchanged = before.without(one.path for one in changes_between(before, after))
    facts = tuple(f"Accepted by: {report.command}" for report in verdict.reports)
    if count := count_uncommitted(repository, target, unchanged):
        facts += (f"The checks also used uncommitted files of the workspace: {count}.",)
    digest = hashlib.sha256((run.folder / CERTIFICATE).read_bytes()).hexdigest()
    trailers = {
        "Assay-Grade": verdict.grade.value if verdict.grade else "none",
        "Assay-Certificate": f"sha256:{digest}",
    }
    message = commit_message(run.request.goal, facts, trailers)
    return prepare_commit(repository, target, before, after, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Files that were written or taken back."""

    run: str
    folder: Path
    changes: tuple[FileChange, ...]


async def apply_run(name: str, settings: Settings, confirm: Confirm) -> Delivery:
    """Write the accepted files of an ended run into its folder.

    Raises:
        UsageError: If the run was not accepted, is in use, or a file was changed meanwhile.
    """
    run = RunStore(settings.state_dir).open(name)
    before, after = _accepted_trees(run)
    folder = destination(run)
    async with (
        hold_workspace(folder, settings.state_dir) as note,
        DiskJournal(run.folder) as journal,
    ):
        note(run.id)
        check_certificate_folder(folder)
        confirm(str(folder.absolute()))
        path = await write_result(run, journal, before, after)
        await journal.keep(DELIVERED, {"certificate": str(path)})
    return Delivery(run=run.id, folder=folder, changes=changes_between(before, after))


async def undo_run(name: str, settings: Settings, confirm: Confirm) -> Delivery:
    """Take back what a run wrote into its folder.

    Raises:
        UsageError: If it wrote nothing, is in use, or a file was changed since.
    """
    run = RunStore(settings.state_dir).open(name)
    before, after = _accepted_trees(run)
    folder = destination(run)
    async with (
        hold_workspace(folder, settings.state_dir) as note,
        DiskJournal(run.folder) as journal,
    ):
        note(run.id)
        kept = await journal.recall(_WRITTEN)
        if kept is None or kept["state"] == "undone":
            raise UsageError(
                f"no files of the run {run.id!r} are in {str(folder)!r}",
                hint=f"`assay apply {run.id}` writes them",
            )
        # A commit on another branch left the folder as it was; `assay apply` wrote the files.
        commit = None if run.request.branch else await journal.recall(_COMMIT)
        if commit is not None:
            object_id = commit["commit"]["object_id"]
            raise UsageError(
                f"the run {run.id!r} has committed its change as {object_id}",
                hint=f"`git revert {object_id}` takes it back",
            )
        confirm(str(folder.absolute()))
        modes = await _recorded_modes(journal, states=("writing", "written", "undoing"))
        await _record(journal, "undoing", modes)
        undo = partial(
            write_changes,
            folder,
            after,
            before,
            owner=run.id,
            hint=_EDITED.format(run.id),
            modes=modes,
        )
        await to_thread.run_sync(undo)
        await to_thread.run_sync(_remove_certificate, run)
        await journal.keep(DELIVERED, {"certificate": str(run.folder / CERTIFICATE)})
        await _record(journal, "undone", {})
    return Delivery(run=run.id, folder=folder, changes=changes_between(after, before))


def _accepted_trees(run: Run) -> tuple[Tree, Tree]:
    result = stored_result(run)
    if not result.accepted:
        raise UsageError(
            f"the result of the run {run.id!r} was not accepted, and only accepted results are "
            "written into your folder",
            hint=f"`assay show {run.id} --files DIR` writes it to a new folder",
        )
    return result.trees(run.id)


def _place_certificate(source: Path, path: Path) -> None:
    """Copy a certificate into the workspace, where git ignores it."""
    copy_certificate(source, path)
    with suppress(OSError):
        if not os.path.lexists(path.parent / _RULES):
            write_file(path.parent / _RULES, _IGNORED)


def _remove_certificate(run: Run) -> None:
    """Remove the certificate, its ignore file after the last one, and folders that are empty."""
    path = _certificate(run)
    with suppress(OSError):
        if path.parent.is_symlink():
            return
        for left in (path, *path.parent.glob(f"{DRAFT}*")):
            left.unlink(missing_ok=True)
        rules = path.parent / _RULES
        if [one.name for one in path.parent.iterdir()] == [_RULES] and (
            rules.read_bytes() == _IGNORED
        ):
            rules.unlink()
        path.parent.rmdir()
    if run.request.workspace is None:
        with suppress(OSError):
            destination(run).rmdir()
