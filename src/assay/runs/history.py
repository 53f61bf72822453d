"""The git history for the sandboxes of a run: copied once, then the same after every resume."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

from assay.contracts.ports import Journal
from assay.contracts.workspace import Tree
from assay.storage.git_history import copy_history

HISTORY: Final = "history"
"""The digest of the copy; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """Copies the history when the first sandbox needs it."""

    journal: Journal
    workspace: Path | None
    pristine: Tree
    on_notice: Callable[[str], None]
    secret_names: tuple[str, ...] = ()
    lock: anyio.Lock = field(default_factory=anyio.Lock)

    async def load(self) -> Tree:
        """Return the files below `.git`; none if the workspace has no repository."""
        async with self.lock:
            kept = await self.journal.recall(HISTORY)
            if kept is not None:
                return await self.journal.load_tree(kept["tree"]) if kept["tree"] else Tree()
            if self.workspace is None:
                return Tree()
            copied = await to_thread.run_sync(
                copy_history, self.workspace, self.pristine, self.secret_names
            )
            digest = await self.journal.store_tree(copied.tree) if copied.tree.files else ""
            await self.journal.keep(HISTORY, {"tree": digest})
            if copied.note:
                self.on_notice(copied.note)
            return copied.tree
