"""The egress policy: hosts that are not on the allowlist are blocked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from assay.contracts.errors import UsageError

_USUAL_PORTS: Final = (80, 443)
_WATCHED_PORTS: Final = (21, 22, 25, 80, 143, 443, 465, 587, 993)
"""The proxy always listens on these, so that it can report denials there."""
_HIGHEST_PORT: Final = 65535
_MOST_PORTS: Final = 24
_LONGEST_NAME: Final = 253
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of the allowlist."""

    name: str
    below: bool
    """Whether the entry matches the subdomains of the name and not the name itself."""
    ports: tuple[int, ...]

    def names(self, host: str) -> bool:
        return host.endswith(f".{self.name}") if self.below else host == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The allowlist."""

    rules: tuple[Rule, ...]

    @property
    def ports(self) -> tuple[int, ...]:
        """Return every port on which the proxy accepts connections."""
        named = {port for rule in self.rules for port in rule.ports}
        return tuple(sorted(named.union(_WATCHED_PORTS)))

    def names(self, host: str) -> bool:
        """Return whether a host is on the allowlist, with any port."""
        return any(rule.names(host) for rule in self.rules)

    def allows(self, host: str, port: int) -> bool:
        return any(rule.names(host) and port in rule.ports for rule in self.rules)


def parse_policy(hosts: Sequence[str]) -> Policy:
    """Parse an allowlist: `example.org`, `*.example.org`, `example.org:8443`.

    Raises:
        UsageError: If an entry is not a host.
    """
    policy = Policy(rules=tuple(_parse_rule(text) for text in hosts))
    named = {port for rule in policy.rules for port in rule.ports}
    if len(named) > _MOST_PORTS:
        raise UsageError(f"hosts with {len(named)} different ports; {_MOST_PORTS} are possible")
    return policy


def _parse_rule(text: str) -> Rule:
    place, _, port = text.partition(":")
    name = place.removeprefix("*.").rstrip(".").lower()
    if not is_host_name(name):
        raise UsageError(f"not a host: {text!r}", hint="give a name, as in example.org")
    if port and not (port.isdecimal() and 0 < int(port) <= _HIGHEST_PORT):
        raise UsageError(f"not a port: {text!r}", hint=f"ports go from 1 to {_HIGHEST_PORT}")
    ports = (int(port),) if port else _USUAL_PORTS
    return Rule(name=name, below=place.startswith("*."), ports=ports)


def is_host_name(name: str) -> bool:
    """Return whether this is a host name in lower case, without the final dot."""
    return 0 < len(name) <= _LONGEST_NAME and all(map(_LABEL.fullmatch, name.split(".")))
