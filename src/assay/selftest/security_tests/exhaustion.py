"""Template of attacks that try to get more of a resource than the limits allow."""

from dataclasses import dataclass

from assay.selftest.security_tests.attack import AttackConfig, HostileCase
from assay.selftest.security_tests.probe import probing


@dataclass(frozen=True, slots=True, kw_only=True)
class Greed:
    """An attack for AMOUNT of a resource: far too much in the attack, little in the control."""

    name: str
    take: str
    """Defines `take()`, which returns a value when it got AMOUNT."""
    much: int
    little: int
    terms: AttackConfig

    def case(self) -> HostileCase:
        return probing(
            self.name,
            detector=f"{self.take}\njudge(take)",
            attack=f"AMOUNT = {self.much}",
            control=f"AMOUNT = {self.little}",
            terms=self.terms,
        )
