"""A backend whose sandboxes all have the same equipment, so that who opens one need not know."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from assay.contracts.execution import DEFAULT_SPEC, Isolation, Limits, SandboxSpec
from assay.contracts.ports import Sandbox, SandboxBackend, trouble_of


@dataclass(frozen=True, slots=True)
class EquippedBackend:
    """See `assay.contracts.ports.SandboxBackend`; what is asked for comes on top."""

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
    """Join two equipments, each thing once."""
    return SandboxSpec(
        packages=tuple(dict.fromkeys((*one.packages, *other.packages))),
        hosts=tuple(dict.fromkeys((*one.hosts, *other.hosts))),
    )
