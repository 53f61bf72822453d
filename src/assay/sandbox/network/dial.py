"""Connects to a host on the list: looks its addresses up and over, and takes one that will do.

The name is looked up outside of the sandbox, and the connection goes to an address that was looked
at: nobody can answer the first question in one way and the second in another.
"""

import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import anyio
import anyio.abc

from assay.sandbox.network.addresses import is_own, refusal
from assay.sandbox.network.policy import Policy, is_host_name

Resolve = Callable[[str], Awaitable[tuple[str, ...]]]
"""Returns the addresses of a name; none if it does not exist. Raises `OSError` if nobody knows."""
Connect = Callable[[str, int], Awaitable[anyio.abc.ByteStream]]
"""Connects to an address; raises `OSError` if nobody is there."""

_REMEMBERED_S: Final = 30.0
_LOOK_UP_WITHIN_S: Final = 10.0
_CONNECT_WITHIN_S: Final = 10.0
_MOST_ADDRESSES: Final = 4


class DeniedError(Exception):
    """The policy keeps this from the program; the message says why."""


class NoSuchHostError(Exception):
    """The policy would allow it, and there is no host of that name."""


async def look_up(name: str) -> tuple[str, ...]:
    """Ask the resolver of this machine."""
    try:
        # With a dot at the end it is not tried with this machine's own domain appended.
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
    """Reaches hosts for one sandbox, those that it may reach."""

    @property
    def policy(self) -> Policy: ...

    async def addresses(self, host: str) -> tuple[str, ...]:
        """Return the addresses of a host that one may connect to.

        Raises:
            DeniedError: If the host is not on the list, or all its addresses are out of reach.
            NoSuchHostError: If it does not exist.
            OSError: If that cannot be found out.
        """
        ...

    async def dial(self, host: str, port: int) -> anyio.abc.ByteStream:
        """Connect to a port of a host; raises like `addresses`."""
        ...


class DialerFactory(Protocol):
    """Where sandboxes of one backend get to the world, if they get there."""

    def dialer(self, policy: Policy) -> Dialing: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectDialer:
    """How the world beyond the gate is reached. What may be reached is decided elsewhere."""

    look_up: Resolve = look_up
    connect: Connect = connect

    def dialer(self, policy: Policy) -> "Dialer":
        return Dialer(policy=policy, outside=self)


@dataclass(slots=True, kw_only=True)
class Dialer:
    """See `Dialing`: from this machine."""

    policy: Policy
    outside: DirectDialer
    questions: int = 1000
    """How many more may be asked of the outside: a name can carry a message."""
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
            except OSError as error:  # a deadline that passed is one too
                failure = error
        raise failure


def _objection(address: str) -> str:
    if why := refusal(address):
        return why
    return "an address of this machine" if is_own(address) else ""


def _is_address(host: str) -> bool:
    return refusal(host) != "not an address"
