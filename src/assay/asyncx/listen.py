"""Listening sockets, and a uvicorn server without signal handlers."""

import socket
from collections.abc import Generator
from contextlib import contextmanager
from ipaddress import ip_address

import uvicorn

from assay.contracts.errors import UsageError


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Raises:
        UsageError: If the address is not one of this machine, or taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        taken = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"{host!r} is not an address: {error.strerror}") from error
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        taken.listen(128)
    except OSError as error:
        taken.close()
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="choose another with --port; 0 takes any that is free",
        ) from error
    return taken


def is_loopback(host: str) -> bool:
    """Whether this address is reachable only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def url_of(taken: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = taken.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class EmbeddedServer(uvicorn.Server):
    """Leaves signals to Assay: uvicorn would raise them again before the sandboxes are closed."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
