"""What a promise is: a sentence about every journal, and the coroutine that checks it."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Protocol

from assay.contracts.events import RunEvent
from assay.contracts.ports import Journal


class JournalSubject(Protocol):
    """One run, whose journal can be opened again and again."""

    def open(self, *listeners: Callable[[RunEvent], None]) -> AbstractAsyncContextManager[Journal]:
        """Open the journal, with all that was kept when it was open before."""
        ...

    def written(self) -> tuple[RunEvent, ...]:
        """Return the events that were written down, in order."""
        ...

    def no_room(self) -> AbstractContextManager[None]:
        """Make every writing fail, for as long as this lasts."""
        ...

    def damage_tree(self, digest: str) -> None:
        """Change a byte of a state that was kept."""
        ...


Check = Callable[[JournalSubject], Awaitable[None]]
"""Raises `AssertionError`, with words, when the promise is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPromise:
    """One sentence of the contract that a journal keeps or breaks."""

    name: str
    check: Check

    async def __call__(self, subject: JournalSubject) -> None:
        await self.check(subject)


def promise(check: Check) -> JournalPromise:
    """Turn a coroutine function into a promise named after it."""
    assert isinstance(check, FunctionType)
    return JournalPromise(name=check.__name__, check=check)


def promises_in(module: ModuleType) -> tuple[JournalPromise, ...]:
    """Return a module's promises in the order in which they are written."""
    return tuple(found for found in vars(module).values() if isinstance(found, JournalPromise))
