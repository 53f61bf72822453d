"""Diagnosis of an unreachable executor; gRPC gives no cause."""

import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first bytes that an HTTP/2 client sends."""

Finding = tuple[str, str]
"""The cause and the fix."""

_SILENT: Final = (
    "it takes connections, but does not answer",
    "is its process stopped, or its machine overloaded? its log may say more",
)
_SOMETHING_ELSE: Final = (
    "it answers, but not as an executor does",
    "is something else running there?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The certificates to trust and to present, as files."""

    ca: Path | None
    cert: Path | None
    key: Path | None
    server_name: str


def diagnose(address: str, identity: Identity, patience_s: float) -> Finding:
    """Repeat the connection steps of gRPC one by one and report the one that fails."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        connection = socket.create_connection((host, int(port)), timeout=patience_s)
    except OSError as error:
        return str(error.strerror or error).lower(), "is the executor running there?"
    with connection:
        if identity.ca is None:
            return _diagnose_plain(connection)
        return _diagnose_tls(connection, host, identity)


def _diagnose_plain(connection: socket.socket) -> Finding:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Only tests whether the other side speaks TLS; nothing is sent over the connection.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with context.wrap_socket(connection):
            pass
    except ssl.SSLError as error:
        if "WRONG_VERSION_NUMBER" not in str(error):
            return "it speaks TLS, and we speak plain text", "set sandbox.remote.ca"
        return _SOMETHING_ELSE
    except TimeoutError:
        return _SILENT
    except OSError:
        return _SOMETHING_ELSE
    return "it speaks TLS, and we speak plain text", "set sandbox.remote.ca"


def _diagnose_tls(connection: socket.socket, host: str, identity: Identity) -> Finding:
    try:
        context = ssl.create_default_context(cafile=str(identity.ca))
        context.set_alpn_protocols(["h2"])
        if identity.cert is not None:
            context.load_cert_chain(identity.cert, identity.key)
        with context.wrap_socket(connection, server_hostname=identity.server_name or host) as tls:
            # In TLS 1.3, the server rejects the client certificate only after the handshake.
            tls.sendall(_PREFACE)
            if tls.recv(1):
                return "it answers, but slowly", "ask again"
    except ssl.SSLCertVerificationError as error:
        return _untrusted(error)
    except ssl.SSLError as error:
        if "WRONG_VERSION_NUMBER" in str(error):
            return "it speaks plain text, and we speak TLS", "unset sandbox.remote.ca"
    except TimeoutError:
        return _SILENT
    except OSError:
        pass  # The server closed the connection, as after the handshake.
    return _hung_up(identity)


def _untrusted(error: ssl.SSLCertVerificationError) -> Finding:
    match error.verify_code:
        case 10:  # X509_V_ERR_CERT_HAS_EXPIRED
            return (
                "its certificate has expired",
                "make another with `assay certs make`, and restart the executor with it",
            )
        case 9:  # X509_V_ERR_CERT_NOT_YET_VALID
            return "its certificate is not valid yet", "compare the clocks of both machines"
        case _:
            why = error.verify_message
            return f"its certificate cannot be trusted: {why}", "is sandbox.remote.ca right?"


def _hung_up(identity: Identity) -> Finding:
    if identity.cert is None:
        return (
            "it closed the connection because the client sent no certificate",
            "set sandbox.remote.cert and sandbox.remote.key",
        )
    if ended := _expiry(identity.cert):
        return f"our certificate has expired on {ended}", "let `assay certs make` make another"
    return (
        "it rejects the client certificate",
        "ask its operator which authority may sign client certificates; its log has the reason",
    )


def _expiry(path: Path) -> str:
    """Return when our certificate expired; empty if it is valid."""
    try:
        ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return ""
    return f"{ends:%Y-%m-%d %H:%M} UTC" if ends < datetime.now(UTC) else ""
