"""What a promise is: a sentence about every memory, and the coroutine that checks it."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Protocol

from assay.contracts.ports import LessonStore


class MemorySubject(Protocol):
    """One memory, empty at first, that can be opened again and again."""

    def open(
        self, *, project: str = "", environment: str = ""
    ) -> AbstractAsyncContextManager[LessonStore]:
        """Open it for a run in this project and environment, with all that it was told before."""
        ...


Check = Callable[[MemorySubject], Awaitable[None]]
"""Raises `AssertionError`, with words, when the promise is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPromise:
    """One sentence of the contract that a memory keeps or breaks."""

    name: str
    check: Check

    async def __call__(self, subject: MemorySubject) -> None:
        await self.check(subject)


def promise(check: Check) -> MemoryPromise:
    """Turn a coroutine function into a promise named after it."""
    assert isinstance(check, FunctionType)
    return MemoryPromise(name=check.__name__, check=check)


def promises_in(module: ModuleType) -> tuple[MemoryPromise, ...]:
    """Return a module's promises in the order in which they are written."""
    return tuple(found for found in vars(module).values() if isinstance(found, MemoryPromise))
