"""Type of a requirement: a sentence about every sandbox, and the coroutine that checks it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import overload

from assay.contracts.execution import Isolation
from assay.contracts.ports import SandboxBackend

Check = Callable[[SandboxBackend], Awaitable[None]]
"""Raises `AssertionError` with a message if the requirement is violated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One sentence of the contract that a backend meets or violates."""

    name: str
    group: str
    check: Check
    needs: Isolation
    """The lowest isolation level at which this requirement applies."""
    needs_branch: bool = False
    """Whether the requirement is about branches, which not every backend supports: one without them
    sets `branches = False`."""

    def excuse(self, backend: SandboxBackend) -> str:
        """Return why the requirement does not apply to a backend; empty if it does."""
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
    """Turn a coroutine function into a requirement named after it."""

    def promised(check: Check) -> Requirement:
        assert isinstance(check, FunctionType)
        group = check.__module__.rpartition(".")[2]
        return Requirement(
            name=check.__name__, group=group, check=check, needs=needs, needs_branch=needs_branch
        )

    return promised if check is None else promised(check)


def promises_in(module: ModuleType) -> tuple[Requirement, ...]:
    """Return a module's requirements in source order."""
    return tuple(found for found in vars(module).values() if isinstance(found, Requirement))
