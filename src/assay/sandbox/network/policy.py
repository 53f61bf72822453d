"""The egress policy: hosts that are not on the allowlist and special addresses are blocked.

The owner of an allowed name decides where it points. So the final address counts: this machine,
private networks and services that provide machine credentials are blocked.
"""

import ipaddress
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
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


Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_TRANSLATED: Final = tuple(
    (ipaddress.IPv6Network(network), shift)
    for network, shift in (
        ("64:ff9b::/96", 0),  # NAT64
        ("64:ff9b:1::/48", 0),  # NAT64 within one network
        ("::/96", 0),  # the oldest way to write an IPv4 address
        ("::ffff:0:0:0/96", 0),  # translated by a host itself
        ("2002::/16", 80),  # 6to4
    )
)
"""IPv6 ranges that embed an IPv4 address, and its distance from the end in bits."""
_NEVER: Final = tuple(
    (ipaddress.ip_network(network), why)
    for network, why in (
        ("168.63.129.16/32", "the address of a cloud's metadata"),
        ("169.254.0.0/16", "a link-local address, as of a cloud's metadata"),
        ("100.64.0.0/10", "an address within a provider's network"),
        ("192.0.0.0/24", "a special address"),
        ("192.88.99.0/24", "a special address"),
        ("2001::/32", "a tunnel"),  # Teredo: reaches any IPv4 address through a relay
        ("2002::/16", "a tunnel"),
        ("64:ff9b::/96", "a translated address"),
        ("64:ff9b:1::/48", "a translated address"),
        ("::/96", "a translated address"),
        ("::ffff:0:0:0/96", "a translated address"),
        ("fec0::/10", "a private address"),
    )
)


def address_refusal(text: str) -> str:
    """Return why this address is blocked; empty if it is allowed."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "not an address"
    for meant in _meanings(address):
        if why := _objection(meant):
            return why
    return ""


def _meanings(address: Address) -> Iterator[Address]:
    """Return the address and every address that it embeds, the plainest first."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            # Not a route to it, but another notation of the same address.
            yield address.ipv4_mapped
            return
        for network, shift in _TRANSLATED:
            if address in network:
                yield ipaddress.IPv4Address((int(address) >> shift) & 0xFFFFFFFF)
    yield address


def _objection(address: Address) -> str:
    named = (
        (address.is_unspecified, "no address at all"),
        (address.is_loopback, "a loopback address"),
        (address.is_multicast, "a multicast address"),
        (address.is_link_local, "a link-local address, as of a cloud's metadata"),
    )
    for applies, why in named:
        if applies:
            return why
    for network, why in _NEVER:
        if address.version == network.version and address in network:
            return why
    if address.is_private:
        return "a private address"
    return "" if address.is_global and not address.is_reserved else "a special address"


def is_own_address(text: str) -> bool:
    """Return whether an address belongs to this machine: connections to it do not leave it."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
        # Sends nothing. For own addresses, the source address equals the destination.
        asking.connect((text, 9))
        return ipaddress.ip_address(asking.getsockname()[0]) == ipaddress.ip_address(text)
    return False
