"""The result of a stored run: its files before and after, and whether they were accepted."""

from dataclasses import dataclass

from assay.contracts.errors import UsageError
from assay.contracts.events import FilesChanged, RunEnded, RunStarted
from assay.contracts.workspace import Tree
from assay.storage.blob_store import BlobStore
from assay.storage.journal import read_events
from assay.storage.run_store import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """The files of a run."""

    before: Tree | None
    """None if the run stopped before it stored the workspace."""
    after: Tree | None
    """The accepted or best files so far; None if no attempt changed anything."""
    accepted: bool

    def trees(self, run: str) -> tuple[Tree, Tree]:
        """Return the files before and after; the same ones if nothing was changed.

        Raises:
            UsageError: If the run has no files.
        """
        if self.before is None:
            raise UsageError(
                f"the run {run!r} has no files yet", hint=f"`assay resume {run}` continues it"
            )
        return self.before, self.after or self.before


def stored_result(run: Run) -> StoredResult:
    """Read the result of a run.

    Raises:
        JournalError: If the record or the files are damaged.
    """
    before, after, accepted = "", "", False
    for recorded in read_events(run.folder):
        match recorded.event:
            case RunStarted(tree=tree):
                before = tree
            case FilesChanged(tree=tree):
                after = tree
            case RunEnded(outcome=outcome):
                after, accepted = outcome.tree, outcome.accepted
            case _:
                pass
    blobs = BlobStore(run.folder)
    return StoredResult(
        before=blobs.load(before) if before else None,
        after=blobs.load(after) if after and after != before else None,
        accepted=accepted,
    )
