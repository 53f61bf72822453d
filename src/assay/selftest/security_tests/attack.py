"""Type of an attack: an attempt that must find nothing, and a control that must find something.

Both use the same detector. The attack points it at a forbidden target, the control at a permitted
one: a detector that cannot fire proves nothing.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Literal, cast

from assay.contracts.execution import DEFAULT_SPEC, Isolation, Limits, Reason, SandboxSpec
from assay.contracts.ports import SandboxBackend
from assay.selftest.programs import describe, python, run_alone
from assay.selftest.security_tests.canaries import HostCanaries, open_canaries

Group = Literal[
    "resources",
    "host_data",
    "processes",
    "kernel_surface",
    "network",
    "equipment",
    "protocol",
    "host_files",
]

TIGHT = Limits(
    wall_s=8.0,
    cpu_s=8.0,
    memory_mb=128,
    processes=32,
    disk_mb=16,
    open_files=64,
    output_bytes=64 << 10,
)
"""Tight limits, so that an attack on a limit ends soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackContext:
    """The backend under attack, and the canaries that it must protect."""

    backend: SandboxBackend
    canaries: HostCanaries


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The finding of a detector."""

    breached: bool
    evidence: str


Detector = Callable[[AttackContext], Awaitable[Finding]]
"""Raises `AssertionError` if the check was not possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackConfig:
    """Configuration of attacks; shared by the attacks of a module."""

    group: Group
    needs: Isolation = Isolation.RESTRICTED
    not_applicable_from: Isolation | None = None
    moot_because: str = "what it attacks is not the host's"
    limits: Limits = TIGHT
    equipment: SandboxSpec = DEFAULT_SPEC
    endings: frozenset[Reason] = frozenset()
    """How the attacker may end, apart from its own report of failure."""
    by_command: bool = False
    """Run the attacker as a separate command instead of in the preloaded interpreter."""

    def against_the_hosts_kernel(self) -> "AttackConfig":
        """Exclude sandboxes with a separate kernel, which use only their own kernel's memory."""
        because = "it is taken from the sandbox's own kernel, within the walls of the container"
        return replace(self, not_applicable_from=Isolation.KERNEL, moot_because=because)

    def within(self, limits: Limits) -> "AttackConfig":
        return replace(self, limits=limits)

    def ending(self, *reasons: Reason) -> "AttackConfig":
        return replace(self, endings=self.endings | set(reasons))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileCase:
    """One attack with the control for its detector."""

    name: str
    group: Group
    attack: Detector
    control: Detector
    needs: Isolation
    """The lowest isolation level at which a backend must stop it."""
    not_applicable_from: Isolation | None
    """From this isolation level on the attack does not apply: its target is not the host's."""

    moot_because: str
    """The reason for the report."""

    def applies_to(self, isolation: Isolation) -> bool:
        return not self.excuse_for(isolation)

    def excuse_for(self, isolation: Isolation) -> str:
        """Return why the attack does not apply at this isolation level; empty if it does."""
        if not isolation.satisfies(self.needs):
            return f"needs isolation {self.needs.value!r}, and this is {isolation.value!r}"
        if self.not_applicable_from is not None and isolation.satisfies(self.not_applicable_from):
            return self.moot_because
        return ""


def build_case(
    name: str, *, attack: Detector, control: Detector, terms: AttackConfig
) -> HostileCase:
    return HostileCase(
        name=name,
        group=terms.group,
        attack=attack,
        control=control,
        needs=terms.needs,
        not_applicable_from=terms.not_applicable_from,
        moot_because=terms.moot_because,
    )


def cases_in(module: ModuleType) -> tuple[HostileCase, ...]:
    """Return a module's attacks, alone or in tuples, in source order."""
    found: list[HostileCase] = []
    for value in vars(module).values():
        # The values of a module have no known type; only the type tests below count.
        members = cast("tuple[object, ...]", value if isinstance(value, tuple) else (value,))
        found += [member for member in members if isinstance(member, HostileCase)]
    return tuple(found)


async def check_case(case: HostileCase, backend: SandboxBackend) -> None:
    """Run one attack with its control. Host and backend must work afterwards.

    Raises:
        AssertionError: If the attack succeeded, or its detector cannot fire.
    """
    async with open_canaries() as canaries:
        finding = await case.control(AttackContext(backend=backend, canaries=canaries))
    assert finding.breached, f"the detector did not fire on its control: {finding.evidence}"
    async with open_canaries() as canaries:
        finding = await case.attack(AttackContext(backend=backend, canaries=canaries))
        assert not finding.breached, f"breached: {finding.evidence}"
        harm = canaries.harm()
        assert not harm, f"the host was touched: {'; '.join(harm)}"
    result = await run_alone(backend, python("print(6 * 7)"))
    assert result.stdout == "42\n", f"the backend is not well afterwards: {describe(result)}"
