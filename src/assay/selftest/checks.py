"""Type of a check: a requirement or an attack, with the conditions under which it applies.

Requirements are coroutine functions, which the suite gives what they name: the backend, a sandbox,
or an interpreter in a sandbox. Attacks are built in `assay.selftest.security_tests.attack`.
"""

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Literal, cast, overload

from assay.contracts.execution import Isolation, Limits
from assay.contracts.ports import SandboxBackend
from assay.selftest.known_gaps import known_gap
from assay.selftest.programs import ORDINARY

Suite = Literal["conformance", "hostile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One requirement that a backend meets or violates, or one attack that it stops or not."""

    suite: Suite
    group: str
    name: str
    run: Callable[[SandboxBackend], Awaitable[None]]
    """Raises `AssertionError` with a message if the backend does not pass."""
    needs: Isolation = Isolation.NONE
    """The lowest isolation level at which it applies."""
    not_applicable_from: Isolation | None = None
    """From this isolation level on an attack does not apply: its target is not the host's."""
    moot_because: str = ""
    """The reason for the report."""
    needs_branch: bool = False
    """Whether it is about branches, which not every backend supports: one without them sets
    `branches = False`."""

    def applies_to(self, isolation: Isolation) -> bool:
        return not self._moot_at(isolation)

    def _moot_at(self, isolation: Isolation) -> str:
        if not isolation.satisfies(self.needs):
            return f"needs isolation {self.needs.value!r}, and this is {isolation.value!r}"
        if self.not_applicable_from is not None and isolation.satisfies(self.not_applicable_from):
            return self.moot_because
        return ""

    def why_not(self, backend: SandboxBackend) -> str:
        """Return why it does not apply to a backend; empty if it does."""
        if moot := self._moot_at(backend.isolation):
            return moot
        if self.needs_branch and not getattr(backend, "branches", True):
            return "interpreters of this backend have no branches"
        return known_gap(backend.name, self.name)


def checks_in(*modules: ModuleType) -> tuple[Check, ...]:
    """Return the checks of these modules, alone or in tuples, in source order."""
    found: list[Check] = []
    for module in modules:
        for value in vars(module).values():
            # The values of a module have no known type; only the type tests below count.
            members = cast("tuple[object, ...]", value if isinstance(value, tuple) else (value,))
            found += [member for member in members if isinstance(member, Check)]
    return tuple(found)


Function = Callable[..., Awaitable[None]]


@overload
def requirement(function: Function) -> Check: ...


@overload
def requirement(
    *, needs: Isolation = ..., needs_branch: bool = ..., limits: Limits = ...
) -> Callable[[Function], Check]: ...


def requirement(
    function: Function | None = None,
    *,
    needs: Isolation = Isolation.NONE,
    needs_branch: bool = False,
    limits: Limits = ORDINARY,
) -> Check | Callable[[Function], Check]:
    """Turn a coroutine function into a requirement named after it.

    Its parameters are `backend`, `sandbox` or `interpreter`. The suite opens a sandbox with these
    limits, and an interpreter in it.
    """

    def decorate(function: Function) -> Check:
        assert isinstance(function, FunctionType)
        wanted = inspect.signature(function).parameters

        async def run(backend: SandboxBackend) -> None:
            given: dict[str, object] = {"backend": backend}
            async with AsyncExitStack() as stack:
                if wanted.keys() & {"sandbox", "interpreter"}:
                    sandbox = await stack.enter_async_context(backend.open_sandbox(limits))
                    given["sandbox"] = sandbox
                    if "interpreter" in wanted:
                        opening = sandbox.open_interpreter()
                        given["interpreter"] = await stack.enter_async_context(opening)
                await function(**{name: given[name] for name in wanted})

        return Check(
            suite="conformance",
            group=function.__module__.rpartition(".")[2],
            name=function.__name__,
            run=run,
            needs=needs,
            needs_branch=needs_branch,
        )

    return decorate if function is None else decorate(function)
