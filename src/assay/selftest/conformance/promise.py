"""What a promise is: a sentence about every sandbox, and the coroutine that checks it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import overload

from assay.contracts.execution import Isolation
from assay.contracts.ports import SandboxBackend

Check = Callable[[SandboxBackend], Awaitable[None]]
"""Raises `AssertionError`, with words, when the promise is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One sentence of the contract that a backend keeps or breaks."""

    name: str
    group: str
    check: Check
    needs: Isolation
    """The least isolation at which a backend promises this."""
    needs_branch: bool = False
    """Whether it is about branches of an interpreter, which not every backend can make: one that
    cannot says so with `branches = False`."""

    def excuse(self, backend: SandboxBackend) -> str:
        """Say why a backend does not promise this; empty when it does."""
        if not backend.isolation.satisfies(self.needs):
            return f"needs isolation {self.needs.value!r}, and this is {backend.isolation.value!r}"
        if self.needs_branch and not getattr(backend, "branches", True):
            return "interpreters of this backend have no branches"
        return ""

    async def __call__(self, backend: SandboxBackend) -> None:
        await self.check(backend)


@overload
def promise(check: Check) -> Requirement: ...


@overload
def promise(
    *, needs: Isolation = ..., needs_branch: bool = ...
) -> Callable[[Check], Requirement]: ...


def promise(
    check: Check | None = None, *, needs: Isolation = Isolation.NONE, needs_branch: bool = False
) -> Requirement | Callable[[Check], Requirement]:
    """Turn a coroutine function into a promise named after it."""

    def promised(check: Check) -> Requirement:
        assert isinstance(check, FunctionType)
        group = check.__module__.rpartition(".")[2]
        return Requirement(
            name=check.__name__, group=group, check=check, needs=needs, needs_branch=needs_branch
        )

    return promised if check is None else promised(check)


def promises_in(module: ModuleType) -> tuple[Requirement, ...]:
    """Return a module's promises in the order in which they are written."""
    return tuple(found for found in vars(module).values() if isinstance(found, Requirement))
