"""TLS certificates and tokens of an executor, and checks of their strength."""

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from assay.auth.tokens import TokenFile, executor_tokens, read_private
from assay.contracts.errors import UsageError
from assay.settings.executor import ExecutorSettings

if TYPE_CHECKING:
    import grpc


_SOON: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Validated credentials from the settings."""

    server: "grpc.ServerCredentials | None"
    """None for plain text."""
    tokens: TokenFile | None
    wants_certificates: bool

    def describe(self) -> str:
        """Summarize the authentication for people."""
        if self.server is None:
            channel = "plain text"
        else:
            channel = "mutual TLS" if self.wants_certificates else "TLS"
        return channel if self.tokens is None else f"{channel}, {len(self.tokens.current())} tokens"


def load_credentials(settings: ExecutorSettings) -> Credentials:
    """Load certificates and tokens, and check that they suffice for the listen address.

    Raises:
        UsageError: If a file is missing or others can access it, or authentication is too weak.
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
    tokens = None
    if settings.token_file is not None:
        tokens = executor_tokens(settings.token_file)
        tokens.read()
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
    """Whether an address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _server_credentials(settings: ExecutorSettings) -> "grpc.ServerCredentials | None":
    if settings.cert is None or settings.key is None:
        return None
    import grpc

    key = read_private(settings.key).encode()
    check_pair(settings.cert, settings.key, section="executor")
    ca = None if settings.client_ca is None else _read(settings.client_ca)
    return grpc.ssl_server_credentials(
        [(key, _read(settings.cert))],
        root_certificates=ca,
        require_client_auth=ca is not None,
    )


def check_pair(cert: Path, key: Path, *, section: str) -> None:
    """Check that a key belongs to a certificate: gRPC would only report a failed connection.

    Raises:
        UsageError: If it does not, or a file has another format.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A password prevents OpenSSL from asking for one at the terminal.
        context.load_cert_chain(cert, key, password=lambda: "")
    except ssl.SSLError as error:
        why = (
            f"the key {str(key)!r} does not fit the certificate {str(cert)!r}"
            if error.reason == "KEY_VALUES_MISMATCH"
            else f"{str(cert)!r} and {str(key)!r} are not a certificate and its key, in PEM and "
            "without a password"
        )
        raise UsageError(
            why, hint=f"set {section}.cert and {section}.key to files of one `assay certs make`"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read {str(cert)!r}: {error.strerror}") from error


def expiry_warning(cert: Path | None) -> str:
    """Return a warning if a certificate has expired or soon will; otherwise an empty text."""
    if cert is None:
        return ""
    from cryptography import x509

    try:
        ends = x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return ""
    left = ends - datetime.now(UTC)
    if left > _SOON:
        return ""
    when = f"{ends:%Y-%m-%d %H:%M} UTC"
    expired = left <= timedelta()
    status = f"expired on {when}, and clients refuse it" if expired else f"expires on {when}"
    return f"the certificate {str(cert)!r} {status}; make another with `assay certs make`"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
