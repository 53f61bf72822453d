"""Addresses that no sandbox may connect to, regardless of the name.

The owner of an allowed name decides where it points. So the final address counts: this machine,
private networks and services that provide machine credentials are blocked.
"""

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

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


def refusal(text: str) -> str:
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


def is_own(text: str) -> bool:
    """Return whether an address belongs to this machine: connections to it do not leave it."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
        # Sends nothing. For own addresses, the source address equals the destination.
        asking.connect((text, 9))
        return ipaddress.ip_address(asking.getsockname()[0]) == ipaddress.ip_address(text)
    return False
