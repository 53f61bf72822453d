"""A journal without a disk, for tests of whoever writes one."""

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from assay.contracts.errors import JournalError
from assay.contracts.events import Passing, RunEvent
from assay.contracts.workspace import Tree

_PASSING: Final = get_args(Passing)


@dataclass(slots=True, kw_only=True)
class Memory:
    """What outlives a journal: give it to the next one to take a run up again."""

    events: list[RunEvent] = field(default_factory=list[RunEvent])
    keys: set[str] = field(default_factory=set[str])
    kept: dict[str, str] = field(default_factory=dict[str, str])
    """JSON, as it would stand on a disk."""
    trees: dict[str, Tree] = field(default_factory=dict[str, Tree])
    full: bool = False
    """While set, nothing can be kept."""


class MemoryJournal:
    """Keeps the `Journal` port, as long as its memory lasts."""

    def __init__(
        self,
        memory: Memory | None = None,
        *,
        listeners: tuple[Callable[[RunEvent], None], ...] = (),
    ) -> None:
        self.memory = memory or Memory()
        self._listeners = listeners

    @property
    def events(self) -> list[RunEvent]:
        """What was written down, in order."""
        return self.memory.events

    def emit(self, event: RunEvent, *, key: str = "") -> None:
        if key in self.memory.keys:
            return
        if not isinstance(event, _PASSING):
            self.memory.events.append(event)
            if key:
                self.memory.keys.add(key)
        for listener in self._listeners:
            listener(event)

    async def recall(self, key: str) -> Mapping[str, Any] | None:
        written = self.memory.kept.get(key)
        return None if written is None else json.loads(written)

    async def keep(self, key: str, value: Mapping[str, Any]) -> None:
        written = json.dumps(dict(value))
        self._need_room()
        self.memory.kept[key] = written

    async def store_tree(self, tree: Tree) -> str:
        self._need_room()
        self.memory.trees[tree.digest] = tree
        return tree.digest

    async def load_tree(self, digest: str) -> Tree:
        tree = self.memory.trees.get(digest)
        if tree is None:
            raise JournalError(f"the tree {digest[:12]} was not kept")
        if tree.digest != digest:
            raise JournalError(f"the tree {digest[:12]} is not what it was when it was kept")
        return tree

    def _need_room(self) -> None:
        if self.memory.full:
            raise JournalError(f"the run cannot be written down: {os.strerror(errno.ENOSPC)}")
