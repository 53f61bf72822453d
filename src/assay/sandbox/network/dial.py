"""Dialer of allowed hosts: resolves their addresses, checks them and connects to a suitable one.

The proxy resolves the name outside of the sandbox and connects to a checked address. So a name
server cannot give one answer to the check and another to the connection.
"""

import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import anyio
import anyio.abc

from assay.sandbox.network.policy import Policy, address_refusal, is_host_name, is_own_address

Resolve = Callable[[str], Awaitable[tuple[str, ...]]]
"""Returns the addresses of a name; none if it does not exist. Raises `OSError` on failure."""
Connect = Callable[[str, int], Awaitable[anyio.abc.ByteStream]]
"""Connects to an address; raises `OSError` if nothing listens there."""

_REMEMBERED_S: Final = 30.0
_LOOK_UP_WITHIN_S: Final = 10.0
_CONNECT_WITHIN_S: Final = 10.0
_MOST_ADDRESSES: Final = 4


class DeniedError(Exception):
    """The policy blocks this; the message gives the reason."""


class NoSuchHostError(Exception):
    """The policy allows the host, but no host has that name."""


async def look_up(name: str) -> tuple[str, ...]:
    """Ask the resolver of this machine."""
    try:
        # The final dot stops the resolver from appending this machine's own domain.
        found = await anyio.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in {socket.EAI_NONAME, socket.EAI_NODATA}:
            return ()
        raise
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


async def connect(address: str, port: int) -> anyio.abc.ByteStream:
    """Connect from this machine."""
    return await anyio.connect_tcp(address, port)


class Dialing(Protocol):
    """Reaches the allowed hosts of one sandbox."""

    @property
    def policy(self) -> Policy: ...

    async def addresses(self, host: str) -> tuple[str, ...]:
        """Return the permitted addresses of a host.

        Raises:
            DeniedError: If the host is not on the allowlist, or all its addresses are blocked.
            NoSuchHostError: If it does not exist.
            OSError: If the resolver fails.
        """
        ...

    async def dial(self, host: str, port: int) -> anyio.abc.ByteStream:
        """Connect to a port of a host; raises the errors of `addresses`."""
        ...


class DialerFactory(Protocol):
    """Creates the dialers of one backend's sandboxes."""

    def dialer(self, policy: Policy) -> Dialing: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectDialer:
    """Connects from this machine. Policy decisions are made elsewhere."""

    look_up: Resolve = look_up
    connect: Connect = connect

    def dialer(self, policy: Policy) -> "Dialer":
        return Dialer(policy=policy, outside=self)


@dataclass(slots=True, kw_only=True)
class Dialer:
    """Dials from this machine; see `Dialing`."""

    policy: Policy
    outside: DirectDialer
    questions: int = 1000
    """How many more lookups are allowed: a name can carry a message."""
    _known: dict[str, tuple[float, tuple[str, ...]]] = field(
        default_factory=dict[str, tuple[float, tuple[str, ...]]]
    )

    async def addresses(self, host: str) -> tuple[str, ...]:
        if not is_host_name(host) and not _is_address(host):
            raise DeniedError("not a name of a host")
        if not self.policy.names(host):
            raise DeniedError("not on the list of hosts")
        at, known = self._known.get(host, (0.0, ()))
        if known and time.monotonic() - at < _REMEMBERED_S:
            return known
        if self.questions <= 0:
            raise DeniedError("more names than a sandbox may ask for")
        self.questions -= 1
        with anyio.fail_after(_LOOK_UP_WITHIN_S):
            found = (host,) if _is_address(host) else await self.outside.look_up(host)
        if not found:
            raise NoSuchHostError(host)
        objections = {address: _objection(address) for address in found}
        good = tuple(address for address, why in objections.items() if not why)[:_MOST_ADDRESSES]
        if not good:
            address, why = next(iter(objections.items()))
            raise DeniedError(f"it leads to {address}, {why}")
        self._known[host] = (time.monotonic(), good)
        return good

    async def dial(self, host: str, port: int) -> anyio.abc.ByteStream:
        if self.policy.names(host) and not self.policy.allows(host, port):
            raise DeniedError("not with this port on the list of hosts")
        failure = OSError("no address answers")
        for address in await self.addresses(host):
            try:
                with anyio.fail_after(_CONNECT_WITHIN_S):
                    return await self.outside.connect(address, port)
            except OSError as error:  # An expired deadline is one too.
                failure = error
        raise failure


def _objection(address: str) -> str:
    if why := address_refusal(address):
        return why
    return "an address of this machine" if is_own_address(address) else ""


def _is_address(host: str) -> bool:
    return address_refusal(host) != "not an address"
