"""How an executor proves who it is, and what it wants to see of those who ask."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assay.contracts.errors import UsageError
from assay.executor_settings import ExecutorSettings
from assay.sandbox.executor.tokens import Tokens, read_private, read_tokens

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What was configured, read and checked."""

    server: "grpc.ServerCredentials | None"
    """None: plain text."""
    tokens: Tokens | None
    wants_certificates: bool

    def describe(self) -> str:
        """Say in a few words who is let in how."""
        if self.server is None:
            channel = "plain text"
        else:
            channel = "mutual TLS" if self.wants_certificates else "TLS"
        return f"{channel}, {len(self.tokens)} tokens" if self.tokens else channel


def load_credentials(settings: ExecutorSettings) -> Credentials:
    """Read certificates and tokens, and check that they are enough for where we listen.

    Raises:
        UsageError: If a file is missing or open to others, or strangers could get in.
    """
    if (settings.cert is None) != (settings.key is None):
        raise UsageError(
            "a certificate without its key, or a key without its certificate",
            hint="set executor.cert and executor.key, or neither",
        )
    if settings.secure and settings.cert is None:
        raise UsageError(
            "TLS is asked for, and there is no certificate",
            hint="run `assay certs make`, then set executor.cert and executor.key",
        )
    if settings.client_ca is not None and settings.cert is None:
        raise UsageError(
            "client certificates are asked for, and the executor has none itself",
            hint="set executor.cert and executor.key too",
        )
    tokens = None if settings.token_file is None else read_tokens(settings.token_file)
    _check_reach(settings, has_tokens=tokens is not None)
    return Credentials(
        server=_server_credentials(settings),
        tokens=tokens,
        wants_certificates=settings.client_ca is not None,
    )


def _check_reach(settings: ExecutorSettings, *, has_tokens: bool) -> None:
    if is_loopback(settings.host):
        return
    if settings.cert is None:
        raise UsageError(
            f"{settings.host} can be reached from other machines, and there is no TLS",
            hint="set executor.cert and executor.key, or listen on 127.0.0.1",
        )
    if settings.client_ca is None and not has_tokens:
        raise UsageError(
            f"{settings.host} can be reached from other machines, and everybody would get in",
            hint="set executor.client_ca or executor.token_file, or listen on 127.0.0.1",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _server_credentials(settings: ExecutorSettings) -> "grpc.ServerCredentials | None":
    if settings.cert is None or settings.key is None:
        return None
    import grpc  # noqa: PLC0415 - loads third-party code

    key = read_private(settings.key).encode()
    ca = None if settings.client_ca is None else _read(settings.client_ca)
    return grpc.ssl_server_credentials(
        [(key, _read(settings.cert))],
        root_certificates=ca,
        require_client_auth=ca is not None,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
