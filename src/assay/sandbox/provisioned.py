"""A backend that gives all its sandboxes the same packages and hosts."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from assay.contracts.execution import DEFAULT_SPEC, Isolation, Limits, SandboxSpec
from assay.contracts.ports import Sandbox, SandboxBackend, trouble_of


@dataclass(frozen=True, slots=True)
class EquippedBackend:
    """See `assay.contracts.ports.SandboxBackend`; a caller's packages and hosts are added."""

    backend: SandboxBackend
    equipment: SandboxSpec

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def isolation(self) -> Isolation:
        return self.backend.isolation

    @property
    def trouble(self) -> str:
        return trouble_of(self.backend)

    def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AbstractAsyncContextManager[Sandbox]:
        return self.backend.open_sandbox(limits, both(self.equipment, equipment))


def both(one: SandboxSpec, other: SandboxSpec) -> SandboxSpec:
    """Merge two specs without duplicates."""
    return SandboxSpec(
        packages=tuple(dict.fromkeys((*one.packages, *other.packages))),
        hosts=tuple(dict.fromkeys((*one.hosts, *other.hosts))),
    )
