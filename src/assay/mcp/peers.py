"""The local user behind a loopback connection, from the kernel's socket tables."""

import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

_TABLES: Final = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
_LOCAL, _REMOTE, _UID = 1, 2, 7
"""Columns of the kernel's tables of TCP sockets."""
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of a proxy: the connection is then the proxy's, and its users are unknown."""


def user_of(scope: Scope) -> str:
    """Return the local user that sent a request; empty if unknown."""
    client, server = scope.get("client"), scope.get("server")
    headers = Headers(scope=scope)
    if not client or not server or any(name in headers for name in _FORWARDED):
        return ""
    return connected_user((client[0], client[1]), (server[0], server[1]))


def connected_user(client: tuple[str, int], server: tuple[str, int]) -> str:
    """Return the id of the user that owns the client's socket; empty if there is none."""
    try:
        address = ip_address(client[0])
        wanted = (_as_in_table(*client), _as_in_table(*server))
        lines = _TABLES[address.version].read_text().splitlines()[1:]
    except (ValueError, OSError):
        return ""
    if not address.is_loopback:
        return ""
    for columns in map(str.split, lines):
        if (columns[_LOCAL], columns[_REMOTE]) == wanted:
            return columns[_UID]
    return ""


def _as_in_table(host: str, port: int) -> str:
    packed = ip_address(host).packed
    words = (packed[begin : begin + 4] for begin in range(0, len(packed), 4))
    written = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{written}:{port:04X}"
